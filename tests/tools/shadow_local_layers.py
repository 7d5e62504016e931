"""Compares shadows of Megatron's own layers (without Transformer Engine) with the memory that one H100 allocated for
the same rank; for jobs of one GPU, this equals a real run up to 8 MiB (docs/lab/shadow.md, "One device").

    PYTHONPATH=. python tests/tools/shadow_local_layers.py
"""

import sys

from autoscout.targets.megatron.shadow import ask, question_of, shadow
from autoscout.targets.tracing import ShadowAsked
from kb.records import Cluster, Configuration, Job, LaunchSettings, Model, Node, Objective, Traffic, Value

_LLAMA = {"gated": True, "norm": "rmsnorm", "bias": False, "position": "rope"}
SMALL = Model(layers=12, hidden=2048, heads=16, ffn=5504, vocab=32000, **_LLAMA)
LLAMA = Model(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, **_LLAMA)
_ALL = {"ar": "full", "ar_method": "uniform", "ar_layers": 1}
_SHARED = {"sp": True, "distopt": True}
# (model, knobs that differ from 1, rank, GiB)
MEASURED: list[tuple[Model, dict[str, Value], int, float]] = [
    (SMALL, {"mbs": 1}, 0, 19.377),
    (SMALL, {"mbs": 2}, 0, 26.221),
    (SMALL, {"mbs": 4}, 0, 39.919),
    (SMALL, {"mbs": 2, **_ALL}, 0, 15.474),
    (LLAMA, {"tp": 4, "pp": 2, **_SHARED}, 0, 41.95),
    (LLAMA, {"tp": 4, "pp": 2, **_SHARED}, 15, 27.33),
    (LLAMA, {"tp": 8, **_SHARED}, 0, 26.93),
    (LLAMA, {"tp": 8, **_SHARED}, 15, 26.93),
    (LLAMA, {"tp": 2, "pp": 4, **_SHARED}, 0, 73.46),
    (LLAMA, {"tp": 2, "pp": 4, **_SHARED}, 4, 56.07),
    (LLAMA, {"tp": 2, "pp": 4, **_SHARED}, 15, 30.06),
]


def traced(rows: list[tuple[Model, dict[str, Value], int, float]]) -> list[float]:
    """Each row's peak GiB according to its shadow."""
    questions = [{**question_of(*_asked(model, knobs)), "rank": rank} for model, knobs, rank, _ in rows]
    told = ask(questions, [sys.executable], 3600.0)
    return [max(rank.steps[-1].forward_backward, rank.steps[-1].optimizer) / 2**30 for rank in told]


def _asked(model: Model, knobs: dict[str, Value]) -> tuple[Job, Configuration]:
    small = model is SMALL
    job = Job(
        name="layers",
        target="megatron",
        model=model,
        traffic=Traffic(seq_len=2048 if small else 4096, global_batch=8 if small else 64),
        cluster=Cluster(nodes=[Node(device="h100", count=1 if small else 16)]),
        objective=Objective(minimize="step_time_s"),
        launch=LaunchSettings(),
    )
    return job, Configuration({"tp": 1, "pp": 1, "cp": 1, "dp": 1 if small else 2, "mbs": 1, **knobs})


def price_s(knobs: dict[str, Value]) -> float | None:
    """Predicted seconds of a step of Llama from its traced kernels and collectives."""
    return shadow(ShadowAsked(*_asked(LLAMA, knobs), "", None)).step_s


if __name__ == "__main__":
    for (_, knobs, rank, gib), found in zip(MEASURED, traced(MEASURED), strict=True):
        print(f"{knobs} rank {rank}: measured {gib:.3f} GiB, shadow {found:.3f} ({found / gib - 1:+.2%})")
    for split in ({"tp": 4, "pp": 2}, {"tp": 8}, {"tp": 2, "pp": 4}):
        print(f"{split}: {price_s({**split, **_SHARED}):.2f} s a step, priced")
