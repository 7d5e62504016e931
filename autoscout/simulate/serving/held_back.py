"""The limits of an engine's scheduler, and its rules on which steps may contain prompts.

A scheduler that overlaps with the device prepares the next step while one runs (vLLM's step_with_batch_queue, SGLang's
event_loop_overlap), so a prompt that arrives meanwhile joins the step after the next.

Three engines delay prompts further. vLLM V0 schedules once per `num_scheduler_steps` steps. In AMD's fork of V1, while
at least VLLM_MIN_REQUEST_DECODE_STEP requests run, each step that may contain prompts is followed by
VLLM_SUBSEQUENT_DECODE_STEPS steps without prompts. TensorRT-LLM with attention data parallelism (`attention_dp_config`
with `enable_balance`, PyExecutor._balance_adp_requests) holds a prompt until every rank has one and
`batching_wait_iters` more steps have passed; if some rank has none, the prompt starts after `timeout_iters` steps at
the latest. Only one rank is simulated. Requests are distributed round-robin, so if two prompts wait at the simulated
rank, every other rank has at least one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLimits:
    """Limits of one engine's scheduler. `kv_tokens`: capacity of the KV cache."""

    kv_tokens: int
    max_seqs: int = 256
    batched_tokens: int = 8192
    block: int = 16
    chunked: bool = True
    long_prompt: int = 2**62  # most tokens of one prompt in a step
    prefix_caching: bool = True
    version: int = 1
    # share of the running requests' remaining answers for which the cache must have room to admit another
    reserved: float = 0.0
    held: int = 0  # steps without prompts that follow each step that may contain prompts
    held_from: int = 0  # `held` applies while at least this many requests run
    held_several: int = 0  # replaces `held` if several prompts wait
    apart: int = 0  # from this number of waiting prompts on, steps with only prompts may follow each other
    ahead: bool = False  # whether the next step is prepared while one runs


class Turns:
    """Tracks which steps may contain prompts while requests decode."""

    def __init__(self, limits: EngineLimits) -> None:
        self.one, self.several, self.apart = limits.held, min(limits.held_several, limits.held), limits.apart
        self.since, self.alone = self.one, False  # steps since the last one with prompts; whether it had only prompts

    def left(self, waiting: int) -> int:
        """Number of steps before one may contain prompts; 0 if the next step may."""
        if self.alone and waiting >= self.apart:
            return 0
        return max((self.several if waiting > 1 else self.one) - self.since, 0)

    def read(self, alone: bool) -> None:
        """Records a step with prompts. `alone`: whether it decoded no sequence."""
        self.since, self.alone = 0, alone

    def passed(self, steps: int) -> None:
        self.alone = False
        if self.one:
            self.since = (self.since % self.one + steps - 1) % self.one + 1
