"""Runs in vLLM's interpreter for serving_shadow_accuracy.py: a real engine on this CPU that records its step times, and
the same engine as a shadow (dry run) with such times.

    shadow_recorder.py ASKED.json ANSWER.json
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "autoscout" / "running" / "worker"))
sys.path.insert(0, str(Path(__file__).parents[2] / "autoscout" / "targets" / "vllm" / "worker"))
sys.path.insert(0, str(Path(__file__).parents[2] / "autoscout" / "targets" / "vllm" / "worker" / "shadow"))

import driving
import serve


class Recorded:
    """Step times from the real run's steps: [composition …, seconds of the forward pass, seconds of the host]."""

    def __init__(self, steps: list[list[float]]) -> None:
        self._steps, self._next, self.other = steps, 0, 0

    def host(self, seqs: int) -> float:
        return self._steps[min(self._next, len(self._steps) - 1)][6]

    def on_device(self, *composition: float) -> float:
        step = self._steps[min(self._next, len(self._steps) - 1)]
        self.other += list(composition) != step[:5]
        self._next += 1
        return step[5]


class Fitted:
    """Step times from linear fits. `forward`: coefficients of [1, tokens, pairs, sequences, context]; `own`: the
    host's, of [1, sequences]."""

    other = 0

    def __init__(self, forward: list[float], own: list[float]) -> None:
        self._forward, self._own = forward, own

    def host(self, seqs: int) -> float:
        return self._own[0] + self._own[1] * seqs

    def on_device(self, seqs: int, tokens: int, pairs: float, decodes: int, context: int) -> float:
        of = (1.0, tokens + decodes, pairs, seqs + decodes, context)
        return max(sum(c * v for c, v in zip(self._forward, of, strict=True)), 1e-5)


def main() -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    serve.load("cpu")
    asked = json.loads(Path(sys.argv[1]).read_text())
    found = []
    for number, question in enumerate(asked):
        path = Path(sys.argv[2]).with_suffix(f".{number}")
        if (child := os.fork()) == 0:
            code = 1
            try:
                driving.write(path, _real(question) if question["kind"] == "real" else _shadow(question))
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)
        found.append(json.loads(path.read_text()))
        path.unlink()
    Path(sys.argv[2]).write_text(json.dumps(found))


def _engine(question: dict[str, Any], executor: Any = None) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor.abstract import Executor

    wanted = EngineArgs(model=question["model"], skip_tokenizer_init=True, **question["arguments"])
    config = wanted.create_engine_config(UsageContext.OPENAI_API_SERVER)
    return LLMEngine(
        vllm_config=config,
        executor_class=executor or Executor.get_class(config),
        log_stats=False,
        usage_context=UsageContext.OPENAI_API_SERVER,
        multiprocess_mode=False,
    )


def _real(question: dict[str, Any]) -> dict[str, Any]:
    from virtual_engine import Counts, VirtualExecutor

    engine = _engine(question)
    core = engine.engine_core.engine_core
    executor, steps, last = core.model_executor, [], [time.process_time()]
    watched = VirtualExecutor.__new__(VirtualExecutor)  # computes the composition of a step
    watched.scheduler, watched.counts = core.scheduler, Counts()
    watched.clock = driving.Busy()
    execute, sample = executor.execute_model, executor.sample_tokens

    def executed(scheduled: Any, non_block: bool = False) -> Any:
        if not scheduled.total_num_scheduled_tokens:
            return execute(scheduled, non_block)
        composition = watched._composition(scheduled)
        began = time.process_time()
        steps.append([*composition, 0.0, began - last[0]])
        done = execute(scheduled, non_block)
        steps[-1][5] += time.process_time() - began
        return done

    def sampled(grammar: Any, non_block: bool = False) -> Any:
        began = time.process_time()
        done = sample(grammar, non_block)
        if non_block:
            done.result()
        last[0] = time.process_time()
        steps[-1][5] += last[0] - began
        return done

    executor.execute_model, executor.sample_tokens = executed, sampled

    async def answer(requests: Any, concurrency: int, ids: bool) -> Any:
        steps.clear()
        watched.counts = Counts()
        last[0] = time.process_time()
        return serve.answered(engine, requests, concurrency, ids, driving.Busy())

    measured = asyncio.run(driving.drive(question["plan"], answer, alone=True))
    return _said(engine, measured, watched.counts) | {"steps": steps}


def _shadow(question: dict[str, Any]) -> dict[str, Any]:
    from virtual_engine import VirtualExecutor

    times = Recorded(question["steps"]) if "steps" in question else Fitted(question["forward"], question["own"])
    engine = _engine(question, VirtualExecutor.prepared(times, question["memory"]))
    core = engine.engine_core.engine_core
    executor = core.model_executor
    executor.scheduler = core.scheduler

    async def answer(requests: Any, concurrency: int, ids: bool) -> Any:
        executor.begin()
        times._next = times.other = 0
        return serve.answered(engine, requests, concurrency, ids, executor.clock)

    measured = asyncio.run(driving.drive(question["plan"], answer, alone=True))
    return _said(engine, measured, executor.counts) | {"other": times.other}


def _said(engine: Any, measured: dict[str, Any], counts: Any) -> dict[str, Any]:
    cache = engine.vllm_config.cache_config
    names = ("steps", "preemptions", "asked", "cached", "most_running")
    return {
        "passes": measured["passes"],
        "blocks": cache.num_gpu_blocks,
        "counts": {name: getattr(counts, name) for name in names},
    }


if __name__ == "__main__":
    main()
