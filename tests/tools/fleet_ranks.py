"""Compares the fast simulation of fleets with shadows of real vLLM schedulers: how alike both rank fleets (Spearman),
and the CPU time of a prediction (docs/lab/serving-shadow.md). Loads named in HELD_OUT were not looked at while the
simulation was written.

    PYTHONPATH=. python tests/tools/fleet_ranks.py ANSWERS [PYTHON of vLLM]

ANSWERS: a folder in which the answers of shadows are kept, so that a second run needs no vLLM.
"""

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from scipy.stats import spearmanr

from autoscout.simulate.ensemble import Simulators
from autoscout.simulate.serving import engine_run, simulator
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.shadow.served import ServedTrace
from autoscout.targets.jobs import JobSpace
from autoscout.targets.vllm import serving_shadow as shadows
from kb.records import Cluster, Configuration, Job, Model, Node, Objective, Sessions, SpaceLimits, Traffic
from tui.text import table

FLEETS, DEVICES, SEED = 52, 8, 7
AT_ONCE = 13  # fleets that are predicted together, about as many as `predict --best` simulates in its last round
CHAT = [23, 69, 110, 153, 204, 266, 347, 461, 644, 1023, 3069]  # lengths of LMSYS-Chat-1M (fixtures/jobs)
ANSWER = [28, 62, 85, 108, 132, 159, 192, 235, 298, 413, 896]
LOADS = {
    "chat, 40 a second": Traffic(rate=40.0, requests=200, input_len=CHAT, output_len=ANSWER),
    "conversations, 32 users": Traffic(
        concurrency=32, requests=100, input_len=[50, 200, 800], output_len=[50, 150, 300],
        sessions=Sessions(turns=[2, 4, 8]), shared_prefix=256,
    ),
    "groups' prefixes, 20 a second": Traffic(
        rate=20.0, requests=100, input_len=[50, 150, 400], output_len=[30, 100, 250], shared_prefix=2000,
        sessions=Sessions(turns=1, groups=24),
    ),
    "conversations, 12 a second": Traffic(
        rate=12.0, requests=100, input_len=[100, 600, 2000], output_len=[50, 150, 400],
        sessions=Sessions(turns=[1, 4, 10], think_s=1.0, groups=4), shared_prefix=1000,
    ),
    "agents, 24 users": Traffic(
        concurrency=24, requests=100, input_len=[200, 600, 1500], output_len=[40, 120],
        sessions=Sessions(turns=[2, 6], sub_calls=2, groups=3), shared_prefix=1500,
    ),
    "trace with hashes, 10 a second": Traffic(rate=10.0, requests=100, trace="hashes.jsonl"),
}  # fmt: skip
HELD_OUT = ("conversations, 12 a second", "agents, 24 users", "trace with hashes, 10 a second")
METRICS = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "e2el_mean_ms", "output_tokens_per_s")
_ASKED = 4  # shadows of one process, which reads vLLM once
_ROUTERS = ("engine", "round_robin", "power_of_two", "cache_aware", "consistent_hash")


def main() -> int:
    known = Path(sys.argv[1])
    python = [sys.argv[2]] if len(sys.argv) > 2 else []
    known.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "hashes.jsonl"
        trace.write_text("".join(json.dumps(row) + "\n" for row in _hashed()))
        for name, load in LOADS.items():
            traffic = msgspec.structs.replace(load, trace=str(trace)) if load.trace else load
            if python or (known / f"{name}.json").exists():
                rows.append((name, "held out" if name in HELD_OUT else "", *_compared(name, traffic, known, python)))
    print(table(rows, ("load", "", "fleets", *METRICS, "CPU ms each, five metrics at once", "alone, one metric")))
    return 0


def fleets() -> list[Configuration]:
    """Fleets of up to DEVICES devices, in a random order that is always the same."""
    rng, found = random.Random(SEED), dict[str, Configuration]()
    while len(found) < FLEETS:
        tp, prefill = rng.choice((1, 1, 2)), rng.choice((0, 0, 0, 1, 2, 4))
        dp = rng.randint(1, (DEVICES - prefill) // tp)
        apart = {"prefill": prefill, "prefill_tp": 1 if prefill == 1 else rng.choice((1, 2))}
        dealt = {"prefill": 0, "router": rng.choice(_ROUTERS) if dp > 1 else "engine"}
        limits = {"max_num_seqs": rng.choice((8, 32, 128)), "max_num_batched_tokens": rng.choice((512, 2048, 8192))}
        layout = {"h100": tp * dp + prefill, "tp": tp, "dp": dp, **(apart if prefill else dealt)}
        one = Configuration({**layout, **limits})
        found.setdefault(str(sorted(one.knobs.items())), one)
    return list(found.values())


def job_of(traffic: Traffic) -> Job:
    return Job(
        name="fleet",
        task="serve",
        target="vllm",
        model=Model(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, gated=True, norm="rmsnorm"),
        traffic=traffic,
        cluster=Cluster(nodes=[Node(device="h100", count=DEVICES)]),
        objective=Objective(minimize="devices", constraints=["ttft_p99_ms <= 1000"]),
        space=SpaceLimits(allow=["router", "prefill"]),
    )


def _compared(name: str, traffic: Traffic, known: Path, python: list[str]) -> Iterator[object]:
    job = job_of(traffic)
    space = JobSpace.of_job(job)
    full = [Configuration({**space.reference.knobs, **fleet.knobs}) for fleet in fleets()]
    real = _shadows(known / f"{name}.json", job, full, python)
    fast, alone, together = [], [], []
    for at in range(0, len(full), AT_ONCE):
        columns = Simulators(job, space, []).columns(full[at : at + AT_ONCE])
        took, found = _timed(METRICS, columns)
        fast += found
        together.append(took / len(found))
    for one in full:
        columns = Simulators(job, space, []).columns([one])
        for kept in (simulator._SIMULATED, simulator._LAST, engine_run._TABLES):  # as in a first prediction
            kept.clear()
        alone.append(_timed(METRICS[:1], columns)[0])
    ran = np.array([i < len(real) and bool(real[i]) for i in range(len(full))])
    both = np.array([[one[metric] for metric in METRICS] for one in real if one]), np.array(fast)[ran]
    yield int(ran.sum())
    for shadow, ours in zip(both[0].T, both[1].T, strict=True):
        some = np.isfinite(ours)
        refused = f" ({np.sum(~some)} not predicted)" if not some.all() else ""
        yield f"{spearmanr(shadow[some], ours[some])[0]:.3f}{refused}" if some.sum() > 2 else "not predicted"
    yield from (f"{1e3 * float(np.median(took)):.1f}" for took in (together, alone))


def _timed(metrics: Sequence[str], columns: dict[str, np.ndarray]) -> tuple[float, list[list[float]]]:
    """Returns (CPU seconds, each fleet's metrics)."""
    before = time.process_time()
    found = [_values(metric, columns) for metric in metrics]
    return time.process_time() - before, np.array(found).T.tolist()


def _values(metric: str, columns: dict[str, np.ndarray]) -> np.ndarray:
    of_metric = ServingSimulator(metric)
    unknown = np.full(len(columns["tp"]), np.nan)
    return unknown if of_metric.applies(columns) else of_metric.predict(columns).value


def _shadows(path: Path, job: Job, full: list[Configuration], python: list[str]) -> list[dict[str, float]]:
    """Returns each fleet's metrics in its shadow; {} where it does not run."""
    found = json.loads(path.read_text()) if path.exists() else []
    for at in range(len(found), len(full) if python else 0, _ASKED):
        some = full[at : at + _ASKED]
        traces = shadows.ask([shadows.question_of(job, one) for one in some], python, 550.0)
        found += [_metrics(job, one, trace) for one, trace in zip(some, traces, strict=True)]
        path.write_text(json.dumps(found))
    return found


def _metrics(job: Job, configuration: Configuration, trace: ServedTrace) -> dict[str, float]:
    if trace.verdict != "starts":
        print(configuration.knobs, trace.verdict, trace.message[:200], file=sys.stderr)
        return {}
    return shadows.metrics_of(job, configuration, trace)


def _hashed() -> Iterator[dict[str, object]]:
    """Requests in the form of Mooncake's trace: documents of 1 to 12 blocks, a few of them asked about often."""
    rng = random.Random(3)
    documents = [[1000 * d + b for b in range(rng.randint(1, 12))] for d in range(40)]
    for i in range(400):
        document = documents[min(int(rng.expovariate(0.12)), 39)]
        begun = document[: rng.randint(1, len(document))]
        own = rng.randint(20, 500)
        row = {"timestamp": 100 * i, "input_length": 512 * len(begun) + own, "output_length": rng.randint(20, 250)}
        yield {**row, "hash_ids": begun}


if __name__ == "__main__":
    sys.exit(main())
