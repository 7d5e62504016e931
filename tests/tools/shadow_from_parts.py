"""Compares composed shadows with whole traces, on a model small enough for many traces (docs/lab/shadow.md's table).

PYTHONPATH=. python tests/tools/shadow_from_parts.py [LAYERS HIDDEN]
"""

import sys
import tempfile
import time
from pathlib import Path

import msgspec

from autoscout.simulate.shadow.traced import GIB
from autoscout.simulate.shadow.verdict import peak
from autoscout.targets.megatron import shadow as whole
from autoscout.targets.megatron.shadow_parts import from_parts
from autoscout.targets.tracing import ShadowAsked
from kb.records import Cluster, Configuration, Job, LaunchSettings, Model, Node, Objective, Traffic, Value

PLAIN: dict[str, Value] = {"tp": 2, "pp": 4, "cp": 1, "dp": 4, "mbs": 1, "distopt": True, "sp": True}
CASES: dict[str, dict[str, Value]] = {
    "one stage": {"pp": 1},
    "two stages, no sequence parallelism": {"pp": 2, "sp": False, "mbs": 2},
    "four stages": {},
    "more replicas": {"dp": 32},
    "two chunks a stage": {"vpp": 2},
    "all recomputed": {"ar": "full", "ar_method": "uniform", "ar_layers": 1},
    "optimizer not shared": {"distopt": False},
}
EXPERTS: dict[str, dict[str, Value]] = {"experts, ep 4": {"ep": 4, "dispatcher": "alltoall"}}


def job(layers: int, hidden: int, experts: int, devices: int) -> Job:
    model = Model(
        layers=layers,
        hidden=hidden,
        heads=16,
        kv_heads=4,
        vocab=32000,
        ffn=3 * hidden,
        gated=True,
        norm="rmsnorm",
        bias=False,
        position="rope",
        tied=False,
    )
    if experts:
        model = msgspec.structs.replace(model, experts=experts, topk=2, expert_ffn=hidden)
    return Job(
        name="parts",
        target="megatron",
        model=model,
        traffic=Traffic(seq_len=2048, global_batch=1024),
        cluster=Cluster(nodes=[Node(device="h100", count=devices)]),
        objective=Objective(minimize="step_time_s"),
        launch=LaunchSettings(transformer_engine=True),
    )


def main(layers: int, hidden: int) -> None:
    print("| case | GiB by rank, whole | from parts: error | step, whole | from parts | CPU s, whole | known parts |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        kb = Path(folder) / "kb.duckdb"
        for name, more in {**CASES, **EXPERTS}.items():
            knobs = {**PLAIN, **more}
            degrees = [int(knobs[k]) for k in ("tp", "pp", "cp", "dp")]
            of = job(layers, hidden, 8 if name in EXPERTS else 0, degrees[0] * degrees[1] * degrees[2] * degrees[3])
            asked = ShadowAsked(of, Configuration(knobs), name, kb, 900.0)
            traced = whole.shadow(asked)
            from_parts(asked)
            began = time.process_time()
            again = from_parts(asked)
            spent = time.process_time() - began
            known = {(r.rank, r.imbalance): peak(r) for r in traced.ranks}
            errors = [
                100 * (peak(r) / known[r.rank, r.imbalance] - 1) for r in again.ranks if (r.rank, r.imbalance) in known
            ]
            print(
                f"| {name} | {' / '.join(f'{v / GIB:.3f}' for v in known.values())} | "
                f"{' / '.join(f'{e:+.3f} %' for e in errors)} | {traced.step_s:.4g} s | {again.step_s:.4g} s | "
                f"{traced.cpu_s:.1f} | {spent:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3]) if len(sys.argv) > 2 else (16, 1024))
