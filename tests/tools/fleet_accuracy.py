"""Compares two real vLLM servers on this CPU behind a real vllm-router with a shadow (simulated run) of the fleet:
requests, steps, preemptions and cached tokens of each engine (docs/lab/serving-shadow.md). There is one user, so that
no count depends on the duration of a step. Needs vllm-router next to vLLM (pip install vllm-router==0.1.17).

    PYTHONPATH=. python tests/tools/fleet_accuracy.py [PYTHON of vLLM]
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from autoscout.running import processes
from autoscout.simulate.serving.step_times import PromptAttention, StepTimes
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.vllm import arguments, fleet_servers, load_plan, serving_shadow
from autoscout.targets.vllm.served_model import random_model
from kb.records import Configuration, Job, Traffic
from tui.text import table

sys.path.insert(0, "autoscout/targets/vllm/worker")
import prompts

_ENGINES, _POLICIES, _LIMIT_S = 2, ("round_robin",), 600
_COUNTED = {  # field of served.EngineCounts → vLLM's metric
    "steps": "vllm:iteration_tokens_total_count",
    "preemptions": "vllm:num_preemptions_total",
    "asked": "vllm:prefix_cache_queries_total",
    "cached": "vllm:prefix_cache_hits_total",
    "begun": "vllm:request_success_total",
}


def main() -> int:
    python = Path(sys.argv[1] if len(sys.argv) > 1 else ".venv-vllm/bin/python").absolute()
    job = load_job("fixtures/jobs/tiny-llama-serve-cpu.toml")
    traffic = Traffic(concurrency=1, input_len=[300, 400, 500], output_len=[2, 8, 24], shared_prefix=256, requests=40)
    launch = msgspec.structs.replace(job.launch, python=str(python), warmup=0, iterations=1)
    job = msgspec.structs.replace(job, traffic=traffic, launch=launch)
    configuration = Configuration({**JobSpace.of_job(job).reference.knobs, "prefix_caching": True})
    plan = serving_shadow.once(load_plan.plan(job))
    rows, differ = [], 0
    for policy in _POLICIES:
        real = _served(job, configuration, plan, python, policy)
        shadow = _shadow(job, configuration, plan, python, policy)
        for number, (one, other) in enumerate(zip(sorted(real), sorted(shadow), strict=True)):
            rows.append((policy, number, *(f"{a:,} / {b:,}" for a, b in zip(one, other, strict=True))))
            differ += one != other
    print(table(rows, ("policy", "engine", *_COUNTED)))
    print(f"real / shadow; {differ} of {len(rows)} engines differ")
    return 1 if differ else 0


def _shadow(job: Job, configuration: Configuration, plan: dict[str, Any], python: Path, policy: str) -> list[list[int]]:
    given = arguments.engine_arguments(job, configuration)
    nothing = dict.fromkeys(PromptAttention.__dataclass_fields__, 0.0) | {"tflops": 1.0, "gb_s": 1.0, "sms": 1.0}
    flat = [1e-3] * 4096
    times = StepTimes(
        linear=flat, logits=flat, attention=flat, per_context=[0.0] * 4096, prompt=PromptAttention(**nothing), pp=1.0,
        host_step=0.0, host_seq=0.0, launches=0.0, graph_tokens=1e9, eager=False, eager_prompts=False, overlap=False,
    )  # fmt: skip
    group = {
        "count": _ENGINES,
        "role": "both",
        "arguments": {name: value for name, value in given.items() if name not in serving_shadow.OF_PLACES},
        "memory": given["kv_cache_memory_bytes"],
        "times": asdict(times),
        "link": [0.0, 0.0],
    }
    question = {"model": str(random_model(job)), "config": {}, "gpu": None, "plan": plan, "groups": [group], "lose": []}
    question["router"] = fleet_servers.policy(Configuration({fleet_servers.KNOB: policy}))
    (found,) = serving_shadow.ask([question], [str(python)], 300.0)
    if found.verdict != "starts":
        raise SystemExit(f"the shadow: {found.type}: {found.message}")
    return [[getattr(engine, name) for name in _COUNTED] for engine in found.engines]


def _served(job: Job, configuration: Configuration, plan: dict[str, Any], python: Path, policy: str) -> list[list[int]]:
    """Each engine's counters after the load."""
    given, model = arguments.engine_arguments(job, configuration), str(random_model(job))
    ports = [processes.free_port() for _ in range(_ENGINES)]
    front = processes.free_port()
    environment = {**os.environ, **arguments.environment_variables(job), "HF_HUB_OFFLINE": "1"}
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    lines = [arguments.serve_command(job, model, given, port) for port in ports]
    router = [str(python.with_name("vllm-router")), "--policy", policy, "--port", str(front), "--worker-urls", *urls]
    with tempfile.TemporaryDirectory() as folder:
        running = []
        try:
            for name, line in [*((f"engine-{i}", line) for i, line in enumerate(lines)), ("router", router)]:
                with open(Path(folder) / name, "wb") as log:
                    running.append(subprocess.Popen(line, stdout=log, stderr=log, env=environment))
                if name == f"engine-{_ENGINES - 1}":
                    for i, port in enumerate(ports):
                        _ready(port, running[i], Path(folder) / f"engine-{i}")
            _ready(front, running[-1], Path(folder) / "router")
            for request in prompts.guarded(plan):
                _ask(front, request)
            before = [_counted(port) for port in ports]
            for request in prompts.of_pass(plan, 0):
                _ask(front, request)
            after = [_counted(port) for port in ports]
        finally:
            for process in reversed(running):
                process.terminate()
            for process in running:
                process.wait(60)
    return [[int(b - a) for a, b in zip(one, other, strict=True)] for one, other in zip(before, after, strict=True)]


def _ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"{log.name} is not ready: {log.read_text(errors='replace')[-2000:]}")


def _ask(port: int, request: prompts.PromptRequest) -> None:
    body = {"model": arguments.SERVED_NAME, "prompt": request.prompt, "max_tokens": request.output_len}
    body |= {"temperature": 0.0, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != 200:
        raise SystemExit(f"HTTP {answer.status}: {said[:500]!r}")
    connection.close()


def _counted(port: int) -> list[float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return [
        sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0] == metric)
        for metric in _COUNTED.values()
    ]


if __name__ == "__main__":
    sys.exit(main())
