"""Runs vLLM's own engines under a job's load for any model and kind of GPU, without a GPU: step times are predicted.

    python shadow_serve.py FOLDER        answers FOLDER/question-N.json in FOLDER/answer-N.json, each in a fork

A question: `config` (config.json) or `model` (a folder with one), `gpu` (arguments of become(); None for this CPU),
`plan` (worker/prompts.py), `router`: a policy of routers.toml, `lose`: [seconds, index] of engines that fail,
`each_step` (see EngineFleet), and `groups` of equal engines: `count`, `role` (see FleetEngine), `arguments`
(EngineArgs), `memory` (bytes of KV cache), `times` (StepTimes), `link` (see VirtualExecutor). An answer is
{"verdict": "starts" | "refused" | "untraceable", …}."""

import asyncio
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

# Adds the folders of all targets' workers and of this target's: the interpreter does not have our packages.
sys.path.insert(0, str(Path(__file__).parents[4] / "running" / "worker"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import driving
import effective
import leash
import prompts
import serve
from load_watch import LoadWatch


class Phase:
    now = "import"


def answer(question: dict[str, Any]) -> dict[str, Any]:
    began = time.process_time()
    try:
        found = _answered(question)
    except Exception as error:
        found = _refused(error)
    return {**found, "cpu_s": round(time.process_time() - began, 3)}


def _answered(question: dict[str, Any]) -> dict[str, Any]:
    import foreign_gpu
    from engine_fleet import EngineFleet

    Phase.now = "config"
    if question["gpu"]:
        foreign_gpu.become(**question["gpu"])
    model = question["model"] or _folder(question["config"])
    engines = [(_engine(model, of), of["role"]) for of in question["groups"] for _ in range(of["count"])]
    losses = [tuple(loss) for loss in question["lose"]]
    fleet = EngineFleet(engines, question["router"], losses, question.get("each_step", False))
    Phase.now = "load"
    measured = _loaded(fleet, question["plan"])
    config = engines[-1][0].vllm_config  # the last engine is one that decodes
    return {
        "verdict": "starts",
        "passes": measured["passes"],
        "max_rate": measured.get("max_rate", 0.0),
        "tried": measured.get("tried", []),
        "effective": effective.of_config(config)["values"],
        "block_size": config.cache_config.block_size,
        "kv_blocks": config.cache_config.num_gpu_blocks,
        "concurrent_batches": config.max_concurrent_batches,
        "engines": fleet.counted(),
    }


def _engine(model: str, of: dict[str, Any]) -> Any:
    """Creates an engine. `of`: the question's entry for the engine's group."""
    from virtual_engine import VirtualExecutor, tables
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    Phase.now = "config"
    config = EngineArgs(model=model, skip_tokenizer_init=True, **of["arguments"]).create_engine_config(
        UsageContext.OPENAI_API_SERVER
    )
    Phase.now = "build"
    return LLMEngine(
        vllm_config=config,
        executor_class=VirtualExecutor.prepared(tables(of["times"]), of["memory"], tuple(of["link"])),
        log_stats=False,
        usage_context=UsageContext.OPENAI_API_SERVER,
        multiprocess_mode=False,
    )


def _loaded(fleet: Any, plan: dict[str, Any]) -> dict[str, Any]:
    """Returns drive()'s result. Each request's record also has the engine that answered the request, and the time of
    the request's first step."""
    loads = 0

    async def answered(
        requests: list[prompts.PromptRequest], concurrency: int, ids: bool, watch: LoadWatch | None = None
    ) -> tuple[float, list[driving.Record]]:
        nonlocal loads
        fleet.begin(
            lambda name: requests[int(name)].session, loses=loads > plan["warmup"]
        )  # engines fail only after load 0 (equivalence prompts) and the warm-up
        loads += 1
        duration, records = serve.answered(fleet, requests, concurrency, ids, fleet, watch, fleet.step)
        begun = fleet.scheduled()
        for i, record in enumerate(records):
            name = str(i)
            record |= {"engine": fleet.placed.get(name, 0), "error": fleet.failed.get(name, "")}
            record |= {"begun": begun[name]} if name in begun else {}
        return duration, records

    return asyncio.run(driving.drive(plan, answered, alone=True))


def _folder(config: dict[str, Any]) -> str:
    folder = tempfile.mkdtemp(prefix="autoscout-model-")
    (Path(folder) / "config.json").write_text(json.dumps(config))
    return folder


def _refused(error: Exception) -> dict[str, Any]:
    """Returns the answer for an exception: its type and message, and the line of vLLM that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    there = [f for f in frames if "/vllm/" in f.filename and "/worker/shadow/" not in f.filename] or frames
    return {
        "verdict": "untraceable" if type(error).__name__ == "Untraceable" else "refused",
        "type": type(error).__name__,
        "message": str(error)[:2000],
        "where": f"{there[-1].filename.rpartition('site-packages/')[2]}:{there[-1].lineno} {there[-1].name}",
        "traceback": "".join(traceback.format_exception(error))[-3000:],
        "phase": Phase.now,
    }


def main(folder: Path) -> int:
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = str(folder)
    serve.load("none")
    import vllm.model_executor.models.qwen3_moe
    import vllm.v1.core.sched.async_scheduler  # noqa: F401

    parent = os.getpid()
    paths = sorted(folder.glob("question-*.json"), key=lambda path: int(path.stem.rpartition("-")[2]))
    for path in paths:
        child = os.fork()  # vLLM caches the platform and the engine once per process
        if child == 0:
            code = 1
            leash.die_with(parent)
            try:
                found = answer(json.loads(path.read_text()))
                driving.write(path.with_name(path.name.replace("question", "answer")), found)
                code = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        if os.waitpid(child, 0)[1]:
            return 1
    return 0


if __name__ == "__main__":
    leash.die_with(os.getppid())
    sys.exit(main(Path(sys.argv[1])))
