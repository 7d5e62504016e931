"""Runs an experiment on an engine in this process, a fork of a process that has imported vLLM. Reads experiment.json;
writes rank-0.json (drive()'s result, or {"same_as": …}) or rank-0.error.json, and vLLM's effective configuration in
effective.json."""

import asyncio
import contextlib
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import driving
import effective
import prompts
from driving import DriveState, write
from load_watch import LoadWatch, SentRequest

# Modules that an engine imports later, found by comparing sys.modules before and after a run.
_LATER = (
    *("compressed_tensors.compressors", "compressed_tensors.quantization", "compressed_tensors.transform"),
    *(
        "vllm.distributed.elastic_ep.elastic_execute",
        "vllm.model_executor.layers.quantization.compressed_tensors.utils",
    ),
    *("vllm.model_executor.layers.quantization.online.fp8", "vllm.plugins.lora_resolvers.filesystem_resolver"),
    *("vllm.plugins.lora_resolvers.hf_hub_resolver", "vllm.triton_utils.dispatcher", "vllm.utils.cpu_triton_utils"),
    *("vllm.v1.core.sched.scheduler", "vllm.v1.pool.flash_maxsim", "vllm.v1.attention.backends.cpu_attn"),
)


def load(device: str) -> None:
    """Does all slow imports once, before the fork."""
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # this variable would silently override kv_cache_memory_bytes
    import vllm.engine.arg_utils
    import vllm.entrypoints.llm
    import vllm.model_executor.models.llama
    import vllm.model_executor.models.registry
    import vllm.v1.engine.core
    import vllm.v1.engine.llm_engine
    import vllm.v1.executor.uniproc_executor

    if device == "cpu":
        import vllm.v1.worker.cpu_model_runner
        import vllm.v1.worker.cpu_worker  # noqa: F401
    for name in _LATER:
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module(name)


def run_and_exit(experiment: Path) -> NoReturn:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)  # variables that the launcher sets for distributed ranks
    # the process exits without tearing down the engine, which would take seconds
    code, _kept = _logged(experiment, None)
    os._exit(code)


def stay(connection: int) -> NoReturn:
    """Runs several experiments on one engine. Receives one experiment's path per line, and answers each with the
    experiment's exit code. Exits after a failure, since the engine's state is then unknown."""
    code, engine = 0, None
    with os.fdopen(os.dup(connection), "rb") as paths:
        for path in paths:
            code, engine = _logged(Path(path.decode().strip()), engine)
            if code:
                break
            os.write(connection, b"0\n")
    os._exit(code)


def _logged(experiment: Path, engine: Any) -> tuple[int, Any]:
    folder = experiment.parent
    log = os.open(folder / "rank-0.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        return 0, _run(experiment, folder, engine)
    except BaseException as error:
        driving.leave_error(folder, error)
        return 1, None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _run(experiment: Path, folder: Path, engine: Any) -> Any:
    """Runs an experiment on the existing engine or on a new one; returns the engine. If the experiment has a "ceiling",
    a new engine is built with its larger limits, so that configurations with lower limits can reuse the engine."""
    began, given = time.monotonic(), json.loads(experiment.read_bytes())
    os.environ.update(given["environment"])
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor.abstract import Executor

    DriveState.phase, DriveState.passes = "config", 0

    def made(arguments: dict[str, Any]) -> Any:
        wanted = EngineArgs(model=given["model"], skip_tokenizer_init=True, **arguments)
        # OPENAI_API_SERVER selects the defaults of a server, not those of offline inference
        return wanted.create_engine_config(UsageContext.OPENAI_API_SERVER)

    config = made(given["arguments"])
    found = effective.of_config(config)
    write(folder / "effective.json", found)
    if same := given["known"].get(found["identity"]):
        write(folder / "rank-0.json", {"same_as": same, "time": time.time(), "took_s": time.monotonic() - began})  # noqa: TID251 - a timestamp
        return engine
    DriveState.phase = "build"
    ceiling = given.get("ceiling")
    if engine is None:
        built = made(given["arguments"] | ceiling) if ceiling else config
        engine = LLMEngine(
            vllm_config=built,
            executor_class=Executor.get_class(built),
            log_stats=False,
            usage_context=UsageContext.OPENAI_API_SERVER,
            multiprocess_mode=False,
        )
    if ceiling:
        _set(engine, config)
    tokens = effective.kv_cache_tokens(engine.vllm_config)
    write(folder / "effective.json", found | {"kv_cache_tokens": tokens})
    measured = _measured(engine, given["plan"], began + given["limit_s"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    took = {"took_s": time.monotonic() - began}
    write(folder / "rank-0.json", measured | took | ({} if ceiling else {"peak_memory_gib": peak}))
    return engine


def _set(engine: Any, config: Any) -> None:
    """Sets the scheduler's limits to those of `config`, like the scheduler's own __init__ (vLLM 0.32.0,
    v1/core/sched/scheduler.py:129), and empties the prefix cache."""
    scheduler, wanted = engine.engine_core.engine_core.scheduler, config.scheduler_config
    scheduler.max_num_running_reqs = wanted.max_num_seqs
    scheduler.max_num_active_reqs = wanted.max_num_active_seqs or wanted.max_num_seqs
    scheduler.max_num_scheduled_tokens = wanted.max_num_scheduled_tokens or wanted.max_num_batched_tokens
    for name in ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold"):
        setattr(scheduler.scheduler_config, name, getattr(wanted, name))
    if not engine.reset_prefix_cache():
        raise RuntimeError("the prefix cache of the kept engine could not be emptied")


def _measured(engine: Any, plan: dict[str, Any], until: float) -> dict[str, Any]:
    """Returns drive()'s result for the engine under the plan's load. `until`: the monotonic time at which the
    experiment must end."""

    async def answer(
        requests: list[prompts.PromptRequest], concurrency: int, ids: bool, watch: LoadWatch | None = None
    ) -> tuple[float, list[driving.Record]]:
        return answered(engine, requests, concurrency, ids, driving.Busy(), watch)

    return asyncio.run(driving.drive(plan, answer, alone=True, left=lambda: until - time.monotonic()))


def answered(
    engine: Any,
    requests: list[prompts.PromptRequest],
    concurrency: int,
    ids: bool,
    clock: Any,
    watch: LoadWatch | None = None,
    step: Callable[[float], list[Any]] | None = None,
) -> tuple[float, list[driving.Record]]:
    """Steps the engine until all requests are answered. Returns (duration in seconds, a record per request). `clock`:
    see driving.Busy. A request that arrives during a step waits until the step ends, as in a server; the request's
    latency counts from its arrival. `step`: steps several engines concurrently up to the given time; by default the
    engine's own step is used."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    records = [driving.record(0.0, request) for request in requests]
    order = driving.DriveOrder(requests, concurrency)
    quoted = prompts.continued(requests)
    texts: dict[int, list[int]] = {}
    running: set[int] = set()
    sent: list[int] = []
    ended: set[int] = set()
    while order.left or running:
        now = clock.now()
        while (due := order.due(now)) is not None:
            i, came = due
            prompt = texts[requests[i].on] + requests[i].prompt if requests[i].on >= 0 else requests[i].prompt
            texts |= {i: prompt} if i in quoted else {}
            records[i] |= {"sent": came, "asked": len(prompt)}
            params = SamplingParams(
                temperature=0.0,
                max_tokens=requests[i].output_len,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            engine.add_request(str(i), TokensPrompt(prompt_token_ids=prompt), params)
            running.add(i)
            sent.append(i)
        if not running:
            clock.skip(order.next_at() - now)
            continue
        outputs = step(order.next_at()) if step else engine.step()
        now = clock.now()
        for output in outputs:
            i = int(output.request_id)
            tokens = list(output.outputs[0].token_ids)
            if tokens:
                records[i]["chunks"].append(now)
                records[i]["tokens"] += tokens if ids else []
                records[i]["count"] += len(tokens)
                if i in quoted:
                    texts[i] = texts[i] + tokens
            if output.finished:
                running.discard(i)
                ended.add(i)
                order.ended(i, now)
                if (
                    watch
                    and len(ended) % _looks(len(requests)) == 0
                    and watch.ends(now, _seen(requests, records, sent, ended))
                ):
                    _drop(engine, running)
                    running, order.left = set(), 0
    for i, record in enumerate(records):
        record |= {} if i in ended else {"dropped": True}
    return clock.now(), records


def _looks(requests: int) -> int:
    """Returns the number of answers between two checks for an early end of the load. (Checks are rare because they use
    the engine's CPU.)"""
    return max(1, requests // 50)


def _seen(
    requests: list[prompts.PromptRequest], records: list[driving.Record], sent: list[int], ended: set[int]
) -> list[SentRequest]:
    found = []
    for i in sent:
        chunks = records[i]["chunks"]
        first, last = chunks[0] if chunks else None, chunks[-1] if i in ended else None
        found.append(SentRequest(records[i]["sent"], first, last, requests[i].output_len))
    return found


def _drop(engine: Any, running: set[int]) -> None:
    engine.abort_request([str(i) for i in running])
    while engine.has_unfinished_requests():
        engine.step()
