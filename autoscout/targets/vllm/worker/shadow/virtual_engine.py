"""vLLM's engine with a simulated executor, which predicts the duration of each step and advances a simulated clock. The
scheduler, KV cache manager, prefix cache, batch queue, input and output processing are vLLM's own."""

import math
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from simulators import loaded
from virtual_clock import VirtualClock
from vllm.distributed.utils import get_pp_indices
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, KVConnectorOutput, ModelRunnerOutput

_CHECK_INTERVAL_S = 1e-3  # seconds between checks for finished transfers on an engine that has nothing to compute
TOKEN = 11  # the token of all answers; must not be a special one


class Untraceable(Exception):
    """Raised for a model that this executor cannot simulate."""


class Counts:
    """Counters of one load. `glided`: number of glide() steps. `scheduled`: request → time of its first step.
    `busy`: seconds in which the first pipeline stage computes. `received`: tokens whose cache came from other
    engines. `transferring`: seconds that requests waited for these transfers."""

    def __init__(self) -> None:
        self.steps = self.glided = self.preemptions = self.asked = self.cached = self.most_running = 0
        self.received = 0
        self.busy = self.transferring = 0.0
        self.scheduled: dict[str, float] = {}


def tables(given: dict[str, Any]) -> Any:
    """Returns the predictor of step times, created as in the event simulator."""
    module = loaded("step_times")
    return module.StepTimes(**{**given, "prompt": module.PromptAttention(**given["prompt"])})


class _Later(Future):
    """A future that is done at the simulated time `moment`. result() advances the simulated clock to this time."""

    def __init__(self, clock: VirtualClock, moment: float, output: Any) -> None:
        super().__init__()
        self._clock, self._moment, self._output = clock, moment, output

    def done(self) -> bool:
        return self._clock.total >= self._moment

    def result(self, timeout: float | None = None) -> Any:
        self._clock.skip(self._moment - self._clock.total)
        return self._output


class VirtualExecutor(Executor):
    """Simulates the execution of batches. `times`: predicts a batch's duration (StepTimes, or an object with its `host`
    and `on_device`). `memory`: a rank's bytes for the KV cache. `link`: (fixed seconds, seconds per token) of a
    transfer from a different engine; transfers are sequential. Pipeline stages process a batch one after the other,
    each taking an equal share of the time."""

    supports_pp = True
    times: Any
    memory: int
    clock: VirtualClock
    link: tuple[float, float] = (0.0, 0.0)
    scheduler: Any = None  # set after the engine has created it
    # Called with the index of the engine that sent a KV cache, the request's name in this engine, and the time at which
    # the KV cache was read.
    hand_over: Callable[[int, str, float], None]

    def _init_executor(self) -> None:
        # for each stage, when it becomes free (seconds of all loads)
        self._free = [0.0] * self.parallel_config.pipeline_parallel_size
        self._token_at: dict[str, float] = {}  # sequence → time at which its last token is ready
        self._batch: tuple[float, ModelRunnerOutput] | None = None
        # (time, request): when the request's KV cache arrives at this engine
        self._arriving: list[tuple[float, str]] = []
        # (time, request): when another engine has read the KV cache of this request
        self.leaving: list[tuple[float, str]] = []
        self._link_free = 0.0
        self._received: set[str] = set()
        self.ahead = 0  # steps by glide() that the scheduler has not scheduled yet
        self._context = 0  # context tokens of the sequences in the next step by glide()
        self.begin()

    @classmethod
    def prepared(cls, times: Any, memory: int, link: tuple[float, float] = (0.0, 0.0)) -> type["VirtualExecutor"]:
        """Returns an executor class with these settings, because vLLM itself creates the instance."""
        return type("Prepared", (cls,), {"times": times, "memory": memory, "link": link, "clock": VirtualClock()})

    def begin(self, at: float = 0.0) -> None:
        """Begins a new load at total time `at`, or when the engine becomes free, since its last step (for requests that
        have ended) may still be running."""
        self.counts = Counts()
        self.clock.begin(max(at, self.free_at()))

    def free_at(self) -> float:
        return max(self.clock.total, *self._free)

    def determine_available_memory(self) -> list[int]:
        memory = self.cache_config.kv_cache_memory_bytes or self.memory
        return [memory] * self.parallel_config.pipeline_parallel_size

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        """Returns the specs of one rank per stage, since tensor parallel ranks are alike."""
        model, stages = self.model_config, self.parallel_config.pipeline_parallel_size
        if model.use_mla or model.is_hybrid or model.get_sliding_window():
            raise Untraceable("layers without full attention (MLA, windows, state spaces)")
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=model.get_num_kv_heads(self.parallel_config),
            head_size=model.get_head_size(),
            dtype=kv_cache_dtype_str_to_dtype(self.cache_config.cache_dtype, model),
        )
        layers = [get_pp_indices(model.get_total_num_hidden_layers(), stage, stages) for stage in range(stages)]
        return [{f"model.layers.{i}.self_attn.attn": spec for i in range(*some)} for some in layers]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["LBNHC"]]

    def collective_rpc(self, method: Any, *_: Any, **__: Any) -> list[Any]:
        return [("generate",)] if method == "get_supported_tasks" else []

    def check_health(self) -> None:
        pass

    def glides(self, queue: Any) -> int:
        """Returns the number of next steps that only add one token to each running sequence, ends none and preempts
        none, so that glide() can take them. `queue`: the engine's batches in flight, None without asynchronous
        scheduling."""
        scheduler, running = self.scheduler, self.scheduler.running
        waits = scheduler.waiting or getattr(scheduler, "skipped_waiting", ())
        waits = waits and len(running) < scheduler.max_num_running_reqs  # without a free place, none begins
        special = scheduler.connector or self.vllm_config.speculative_config or len(self._free) > 1
        in_flight = 0 if queue is None else 1
        if not running or waits or special or len(queue or ()) != in_flight:
            return 0
        if queue and any(count != 1 for count in queue[0][1].num_scheduled_tokens.values()):
            return 0
        longest, left, self._context = self.model_config.max_model_len, [], 0
        for r in running:
            tokens = r.num_tokens + r.num_output_placeholders
            known = r.num_output_tokens > 0 and not r.is_prefill_chunk and r.num_output_placeholders == in_flight
            if not known or tokens != r.num_computed_tokens + 1 or r.use_structured_output:
                return 0
            self._context += tokens
            left.append(min(r.num_prompt_tokens + r.max_tokens, longest) - tokens)
        threshold = scheduler.scheduler_config.long_prefill_token_threshold or math.inf
        blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks() // len(running) - 1
        steps = scheduler.max_num_scheduled_tokens // len(running)
        return int(max(0, min(*left, threshold, steps, blocks * self.cache_config.block_size) - 1))

    def glide(self, in_flight: bool) -> None:
        """Simulates one step of all running sequences without the scheduler, which schedules all such steps at once
        later. `in_flight`: whether it is scheduled before the last step has ended."""
        decodes, last = len(self.scheduler.running), self._free[0]
        ends = self._step(0, 0, 0.0, decodes, self._context)
        self.clock.skip((last if in_flight else ends) - self.clock.total)
        self._context += decodes
        self.ahead += 1
        self.counts.glided += 1

    def _step(
        self, seqs: int, tokens: int, pairs: float, decodes: int, context: int, names: Collection[str] = ()
    ) -> float:
        """Advances the clock to the start of a step, and returns when the step ends. The counts: see _composition.
        `names`: its sequences, if their last tokens may be ready later than the first stage."""
        self.clock.skip(self.times.host(seqs + decodes))
        share = self.times.on_device(seqs, tokens, pairs, decodes, context) / len(self._free)
        # A token passes through all pipeline stages before the next token of its sequence begins.
        moment = max([self.clock.total, *(self._token_at.get(name, 0.0) for name in names)])
        for stage, free in enumerate(self._free):
            moment = self._free[stage] = max(moment, free) + share
        self.counts.steps += 1
        self.counts.busy += share
        return moment

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        if self.ahead:
            output, self.ahead = self._sampled(scheduler_output, self.ahead), 0
            self._token_at |= dict.fromkeys(scheduler_output.num_scheduled_tokens, self._free[0])
            self._batch = self._free[0], output
            return self._answer_at(self.clock.total, None, non_block)
        connected = scheduler_output.kv_connector_metadata
        if connected is not None:
            self._load(connected.loads)
        if not scheduler_output.total_num_scheduled_tokens:
            if connected is None:
                return self._answer_at(self.clock.total, EMPTY_MODEL_RUNNER_OUTPUT, non_block)
            moment = min([self.clock.total + _CHECK_INTERVAL_S, *(at for at, _ in [*self._arriving, *self.leaving])])
            moment = max(moment, self.clock.total)
            return self._answer_at(moment, replace(EMPTY_MODEL_RUNNER_OUTPUT, **self._ended(moment)), non_block)
        names = scheduler_output.num_scheduled_tokens
        moment = self._step(*self._composition(scheduler_output), names)
        output = self._sampled(scheduler_output, 1)
        if connected is not None:
            output = replace(output, **self._ended(moment))
        self._token_at |= {name: moment for name, one in zip(names, output.sampled_token_ids, strict=True) if one}
        for name in scheduler_output.finished_req_ids:
            self._token_at.pop(name, None)
        self._batch = moment, output
        return self._answer_at(self.clock.total, None, non_block)

    def _load(self, loads: dict[str, tuple[int, int, str]]) -> None:
        for name, (tokens, engine, there) in loads.items():
            begins = max(self.clock.total, self._link_free)
            self._link_free = begins + self.link[0] + self.link[1] * tokens
            self._arriving.append((self._link_free, name))
            self._received.add(name)
            self.counts.received += tokens
            self.counts.transferring += self._link_free - self.clock.total
            self.hand_over(engine, there, self._link_free)

    def _ended(self, moment: float) -> dict[str, Any]:
        """Returns the transfers that ended by `moment`. Each is reported to the scheduler once."""
        here, gone = ({name for at, name in some if at <= moment} for some in (self._arriving, self.leaving))
        self._arriving = [each for each in self._arriving if each[0] > moment]
        self.leaving = [each for each in self.leaving if each[0] > moment]
        return {"kv_connector_output": KVConnectorOutput(finished_recving=here, finished_sending=gone)}

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        assert self._batch is not None
        (moment, output), self._batch = self._batch, None
        return self._answer_at(moment, output, non_block)

    def _answer_at(self, moment: float, output: Any, non_block: bool) -> Any:
        later = _Later(self.clock, moment, output)
        return later if non_block else later.result()

    def _composition(self, scheduled: Any) -> tuple[int, int, float, int, int]:
        """Returns the counts of a step: (prompts, tokens of the prompts, query-key pairs of these tokens, decoding
        sequences, context tokens of the decoding sequences)."""
        counts, requests = self.counts, self.scheduler.requests
        seqs = tokens = decodes = context = 0
        pairs = 0.0
        for name, count in scheduled.num_scheduled_tokens.items():
            request = requests[name]
            before = request.num_computed_tokens - count
            if name not in counts.scheduled:
                counts.scheduled[name] = self.clock.now()
                received = name in self._received
                self._received.discard(name)
                counts.asked += 0 if received else request.num_prompt_tokens
                counts.cached += 0 if received else before
            if count == 1 and not request.is_prefill_chunk:
                decodes += 1
                context += before + 1
            else:
                seqs += 1
                tokens += count
                pairs += count * (before + (count + 1) / 2)
        counts.preemptions += len(scheduled.preempted_req_ids or ())
        counts.most_running = max(counts.most_running, seqs + decodes)
        return seqs, tokens, pairs, decodes, context

    def _sampled(self, scheduled: Any, count: int) -> ModelRunnerOutput:
        """Returns `count` sampled tokens for each sequence whose prompt is complete after this step."""
        names = list(scheduled.num_scheduled_tokens)
        requests = self.scheduler.requests
        tokens = [[] if requests[name].is_prefill_chunk else [TOKEN] * count for name in names]
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens
        )
