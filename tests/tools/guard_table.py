"""How far correct layouts and traps deviate from a single rank, from which the guard's tolerances were chosen.

    python tests/tools/guard_table.py run [DTYPE HIDDEN]     trains the models that the fixture lacks, of this width
    python tests/tools/guard_table.py          the table of docs/lab/gpu-check.md, from the fixture

A trap is a layout that Megatron-core runs without an error, but that computes something else; the catalog's rules
exclude traps."""

import csv
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from autoscout.running.equivalence import Losses, deviates
from autoscout.targets.megatron.profiler import profiler
from kb.records import Cluster, Configuration, Job, LaunchSettings, Model, Node, Objective, Traffic

RECORDED = Path(__file__).parents[2] / "fixtures" / "recorded" / "guard.csv"
WIDTHS = (
    (256, 2),
    (256, 8),
    (256, 32),
    (1024, 4),
    (4096, 1),
    (1536, 2),
    (2048, 2),
    (3072, 2),
    (1536, 4),
)  # hidden, layers
OVERLAPPED = {"distopt": True, "overlap_grad": True, "overlap_param": True}
DENSE: list[dict[str, Any]] = [
    {"mbs": 1},
    {"tp": 2},
    {"pp": 2},
    {"mbs": 2, "dp": 2},
    {"cp": 2},
    {"tp": 2, "sp": True},
    {"ar": "full", "ar_method": "uniform", "ar_layers": 1, "mbs": 2},
    {"mbs": 2, "dp": 2, **OVERLAPPED},
]
EXPERTS: list[dict[str, Any]] = [
    {"mbs": 1},
    {"mbs": 2, "dp": 2, "ep": 2},
    {"mbs": 2, "dp": 2, "ep": 2, "dispatcher": "allgather"},
    {"pp": 2},
    {"cp": 2, "ep": 2},
    {"tp": 2, "sp": True, "etp": 2, "dispatcher": "allgather"},
]
MIXED_UP = {"pp": 2, "vpp": 2, "mbs": 1}  # rule P9
NOT_SUMMED = {"tp": 2, "sp": True, "ep": 1, "etp": 1}  # rule M18


class Row(NamedTuple):
    dtype: str
    hidden: int
    layers: int
    experts: int
    layout: str
    trap: str  # the broken rule; "": a correct layout
    losses: list[float]
    norms: list[float]


def job(dtype: Any, hidden: int, layers: int, experts: int) -> Job:
    model = Model(
        layers=layers,
        hidden=hidden,
        heads=hidden // 64,
        vocab=512,
        ffn=2 * hidden if hidden <= 1024 else hidden,  # torch's bf16 backward pass on CPUs is slow for larger sizes
        gated=True,
        norm="rmsnorm",
        bias=False,
        position="rope",
        experts=experts,
        dtype=dtype,
    )
    return Job(
        name="guard",
        target="megatron",
        model=model,
        traffic=Traffic(seq_len=64 if hidden <= 1024 else 8 if hidden <= 2048 else 4, global_batch=4),
        cluster=Cluster(nodes=[Node(device="cpu", count=4, memory_gib=16.0)]),
        objective=Objective(minimize="step_time_s"),
        launch=LaunchSettings(warmup=1, iterations=2, timeout_s=900.0),
    )


def layouts(hidden: int, layers: int, experts: int) -> list[tuple[str, dict[str, Any]]]:
    """(the rule that a trap breaks, or "", and the knobs); the first is the reference."""
    some = EXPERTS if experts else [knobs for knobs in DENSE if int(knobs.get("pp", 1)) <= layers]
    traps = [("M18", NOT_SUMMED)] if experts else [("P9", MIXED_UP)] if layers >= 4 else []
    return [("", {}), *(("", knobs) for knobs in some), *traps]


def run(only: list[str]) -> None:
    known = {(row.dtype, row.hidden, row.layers, row.experts, row.layout) for row in recorded()}
    models = [(256, 4, 4), *((h, n, 0) for h, n in WIDTHS), (512, 2, 4)]
    for dtype in ("bf16", "fp32"):
        for hidden, layers, experts in models:
            if only and only != [dtype, str(hidden)]:
                continue
            found = profiler(job(dtype, hidden, layers, experts))
            for trap, knobs in layouts(hidden, layers, experts):
                configuration = Configuration({"mbs": 4, **knobs})
                layout = " ".join(f"{name}={value}" for name, value in configuration.knobs.items())
                if (dtype, hidden, layers, experts, layout) in known:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    m = found.run(configuration, layout, Path(folder))
                print(dtype, hidden, layers, experts, layout, trap, m.status, m.losses, m.grad_norms, m.evidence[:200])
                sys.stdout.flush()
                if m.status == "ok":
                    write(Row(dtype, hidden, layers, experts, layout, trap, m.losses, m.grad_norms))
            found.close()


def write(row: Row) -> None:
    new = not RECORDED.exists()
    with open(RECORDED, "a", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        if new:
            out.writerow(Row._fields)
        out.writerow([*row[:-2], *(" ".join(f"{value!r}" for value in series) for series in row[-2:])])


def recorded() -> list[Row]:
    if not RECORDED.exists():
        return []
    with open(RECORDED, newline="") as file:
        return [
            Row(
                row["dtype"],
                int(row["hidden"]),
                int(row["layers"]),
                int(row["experts"]),
                row["layout"],
                row["trap"],
                [float(value) for value in row["losses"].split()],
                [float(value) for value in row["norms"].split()],
            )
            for row in csv.DictReader(file)
        ]


def groups() -> dict[tuple[str, int, int, int], list[Row]]:
    """Rows of one model; the first of each is the reference."""
    found: dict[tuple[str, int, int, int], list[Row]] = defaultdict(list)
    for row in recorded():
        found[row[:4]].append(row)
    return found


def shares(reference: Row, row: Row) -> dict[str, tuple[float, float]]:
    """Compared quantity → (deviation, deviation / tolerance), the largest over its steps."""
    check = Losses(row.dtype, row.hidden, row.layers)
    found: dict[str, tuple[float, float]] = {}
    for what, tolerances, expected, values in (
        ("loss", check.losses, reference.losses, row.losses),
        ("gradient norm", check.norms, reference.norms, row.norms),
    ):
        for number, (wanted, value) in enumerate(zip(expected, values, strict=True)):
            name = f"{what} of the experts" if number > 2 else f"first {what}" if number == 0 else f"later {what}"
            by, allowed = deviates(wanted, value), tolerances[number % 3 > 0]
            found[name] = max(found.get(name, (0.0, 0.0)), (by, by / allowed))
    return found


def table() -> None:
    correct: dict[tuple[str, str], list[tuple[float, float, Row]]] = defaultdict(list)
    traps: dict[str, list[tuple[float, str, float, Row]]] = defaultdict(list)
    for reference, *others in groups().values():
        for row in others:
            found = shares(reference, row)
            if row.trap:
                share, name = max((share, name) for name, (_, share) in found.items())
                traps[row.dtype].append((share, name, found[name][0], row))
            else:
                for name, (by, share) in found.items():
                    correct[row.dtype, name].append((share, by, row))
    print(
        "| format | compared | correct runs | largest deviation | of its tolerance | where |\n|---|---|---|---|---|---|"
    )
    for (dtype, name), rows in sorted(correct.items()):
        share, by, row = max(rows)
        where = f"hidden {row.hidden}, {row.layers} layers, {row.layout}"
        print(f"| {dtype} | {name} | {len(rows)} | {by:.1e} | {share:.1%} | {where} |")
    print("\n| format | traps | the least visible | by | deviation | times its tolerance |\n|---|---|---|---|---|---|")
    for dtype, found_traps in sorted(traps.items()):
        share, name, by, row = min(found_traps)
        where = f"rule {row.trap}, hidden {row.hidden}, {row.layers} layers"
        print(f"| {dtype} | {len(found_traps)} | {where} | {name} | {by:.1e} | {share:.1f} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2:])
    else:
        table()
