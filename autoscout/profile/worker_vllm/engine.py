"""One experiment on an engine in this process: a fork of the zygote, which has imported vLLM.

Reads experiment.json; leaves rank-0.json (what drive() measured, or {"same_as": …}) or rank-0.error.json, and
effective.json: what vLLM made of its arguments.
"""

import asyncio
import contextlib
import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import driving
import effective
import prompts
from driving import State, write

# What an engine imports beside that, seen by what sys.modules gained while one ran.
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
    """Everything that takes seconds to import, once, before the fork."""
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # would silently count instead of kv_cache_memory_bytes
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
    folder = experiment.parent
    log = os.open(folder / "rank-0.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)  # a launcher's, for ranks that find each other
    code = 1
    try:
        _kept = _run(experiment, folder)  # taking an engine down takes seconds, and this process ends anyway
        code = 0
    except BaseException as error:
        driving.leave_error(folder, error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(experiment: Path, folder: Path) -> Any:
    """The engine, or None where it need not be started."""
    given = json.loads(experiment.read_bytes())
    os.environ.update(given["environment"])
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor.abstract import Executor

    State.phase = "config"
    arguments = EngineArgs(model=given["model"], skip_tokenizer_init=True, **given["arguments"])
    config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)  # the defaults of a server
    found = effective.of_config(config)
    write(folder / "effective.json", found)
    if same := given["known"].get(found["identity"]):
        write(folder / "rank-0.json", {"same_as": same, "time": time.time()})
        return None
    State.phase = "build"
    engine = LLMEngine(
        vllm_config=config,
        executor_class=Executor.get_class(config),
        log_stats=False,
        usage_context=UsageContext.OPENAI_API_SERVER,
        multiprocess_mode=False,
    )
    write(folder / "effective.json", found | {"kv_cache_tokens": effective.kv_cache_tokens(config)})

    measured = _measured(engine, given["plan"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    write(folder / "rank-0.json", measured | {"peak_memory_gib": peak})
    return engine


def _measured(engine: Any, plan: dict[str, Any]) -> dict[str, Any]:
    async def answer(
        requests: list[prompts.Request], concurrency: int, ids: bool
    ) -> tuple[float, list[driving.Record]]:
        return _answer(engine, requests, concurrency, ids)

    return asyncio.run(driving.drive(plan, answer, alone=True))


def _answer(
    engine: Any, requests: list[prompts.Request], concurrency: int, ids: bool
) -> tuple[float, list[driving.Record]]:
    """Steps the engine until all are answered. A request that comes while a step runs waits for its end, as it does
    in a server; its time counts from when it came."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    records = [driving.record(0.0, request) for request in requests]
    waiting = list(range(len(requests)))[::-1]
    running: set[int] = set()
    clock = driving.Busy()
    while waiting or running:
        now = clock.now()
        while waiting and (len(running) < concurrency if concurrency else requests[waiting[-1]].arrival_s <= now):
            i = waiting.pop()
            records[i]["sent"] = now if concurrency else requests[i].arrival_s
            params = SamplingParams(
                temperature=0.0,
                max_tokens=requests[i].output_len,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            engine.add_request(str(i), TokensPrompt(prompt_token_ids=requests[i].prompt), params)
            running.add(i)
        if not running:
            clock.skip(requests[waiting[-1]].arrival_s - now)
            continue
        outputs = engine.step()
        now = clock.now()
        for output in outputs:
            i = int(output.request_id)
            tokens = output.outputs[0].token_ids
            if tokens:
                records[i]["chunks"].append(now)
                records[i]["tokens"] += tokens if ids else []
                records[i]["count"] += len(tokens)
            if output.finished:
                running.discard(i)
    return clock.now(), records
