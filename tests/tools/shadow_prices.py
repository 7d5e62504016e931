"""Step times from traces and from the closed form beside what was measured: the table of docs/lab/shadow.md, on the
rows of
Megatron in train_end_to_end that its own code can be asked about, and on its CI's rows whose ranks are known.

    PYTHONPATH=. python tests/tools/shadow_prices.py TRACES [ROW …]

TRACES: a file beside which traces are kept, so that a second run takes seconds. Rows that state no recomputation are
assumed to have none. Experts are traced with Megatron's own all-to-all and priced like DeepEP, which those recipes use.
No constant was fitted to these rows."""

import csv
import gzip
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from shadow_recipes import RECIPES, TABLE, Recipe

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.shadow.pricing import PricedTrace, priced
from autoscout.simulate.shadow.traced import Rank
from autoscout.simulate.shadow.verdict import stages
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.training_tables import Row, columns_of, of_row, step_seconds
from autoscout.targets.megatron.shadow import answers, micro_batches, question_of, shadow, versions_of
from autoscout.targets.tracing import ShadowAsked
from kb.records import Cluster, Configuration, Job, LaunchSettings, Model, Node, Objective, Traffic, Value

ROWS = TABLE.parent / "train_end_to_end.csv.gz"
LIMIT_S = 1800.0
# Megatron-Bridge's recipes with 126 and 94 layers count embedding and loss as a layer each.
SPLIT = {"LLAMA3.1_405B": "embedding+loss", "Qwen3_235B_a22B": "embedding+loss"}
DEVICES = {"H100": "h100", "A10G": "a10g", "L4": "l4", "A100-SXM-80GB": "a100", "H100-SXM-80GB": "h100"}
_KEY = ("gpu", "model", "n_gpus", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch", "seq_len")


def bridge() -> list[list[Row]]:
    """Rows of Megatron-Bridge on H100 with a stated precision, grouped by configuration."""
    found: defaultdict[tuple, list[Row]] = defaultdict(list)
    for row in _table():
        usual = row["gpu"] == "H100" and row["precision"] and row["metric"] == "tokens_per_s_per_gpu"
        own = row["source"] == "megatron_bridge" and "LoRA" not in row["other"] and "fsdp=8" not in row["other"]
        if usual and own and "Nemotron" not in row["model"]:
            found[tuple(row[k] for k in _KEY)].append(row)
    return list(found.values())


def mist() -> list[list[Row]]:
    """Mist's runs with equal stages (layers, degrees) and full recomputation."""
    found: defaultdict[tuple, list[Row]] = defaultdict(list)
    for row in _table():
        if row["source"] == "mist_baseline_runs" and row["metric"] == "iteration_time" and row["tp"] and row["dp"]:
            x = of_row(row)
            even = x["gpus"] == x["tp"] * x["pp"] * x["dp"] and x["layers"] % x["pp"] == 0
            if even and row["value"] and x.get("recomputed", 0) > 0.95:
                found[tuple(row[k] for k in _KEY)].append(row)
    return list(found.values())


def _table() -> list[Row]:
    with gzip.open(ROWS, "rt") as file:
        return list(csv.DictReader(file))


def job_of(row: Row) -> tuple[Job, Configuration]:
    x = of_row(row)
    own = row["source"] == "megatron_bridge"
    heads = int(x["heads"])
    model = Model(
        layers=int(x["layers"]),
        hidden=int(x["hidden"]),
        heads=heads,
        kv_heads=int(x.get("kv_heads", heads)),
        head_dim=int(x.get("head_dim", 0)),
        ffn=int(x.get("ffn", 0)),
        vocab=int(x.get("vocab", 51200)),
        gated=own,
        bias=not own,
        tied=not own,
        norm="rmsnorm" if own else "layernorm",
        position="rope" if own else "learned",
        experts=int(x.get("experts", 0)),
        topk=int(x.get("topk", 2)),
        expert_ffn=int(x.get("expert_ffn", 0)),
    )
    tp, pp, cp, ep, vpp = (int(x.get(name, 1)) for name in ("tp", "pp", "cp", "ep", "vpp"))
    knobs: dict[str, Value] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": int(x["gpus"]) // (tp * pp * cp),
        "mbs": int(x["mbs"]),
    }
    if vpp > 1:
        knobs |= {"vpp": vpp, "overlap_p2p": own}
    if own:
        knobs |= {"sp": tp > 1, "distopt": True, "overlap_grad": True, "overlap_param": True}
        knobs |= {"tp_comm_overlap": tp > 1, "stage_split": SPLIT.get(row["model"], "even")}
        knobs |= {"ce_fusion": True}  # cross_entropy_loss_fusion of Megatron-Bridge's providers
        knobs |= {"fp8": "tensorwise"} if "FP8" in row["precision"] else {}
        knobs |= {"tp_comm": 16} if tp > 1 else {}
    else:
        knobs |= {"ar": "full", "ar_method": "uniform", "ar_layers": 1}
    if model.experts:
        knobs |= {"ep": ep, "etp": 1, "dispatcher": "alltoall", "permute_fusion": True}
    job = Job(
        name=row["model"],
        target="megatron",
        model=model,
        traffic=Traffic(seq_len=int(x["seq_len"]), global_batch=int(x["global_batch"])),
        cluster=Cluster(nodes=[Node(device=DEVICES[row["gpu"]], count=int(x["gpus"]))]),
        objective=Objective(minimize="step_time_s"),
        launch=LaunchSettings(transformer_engine=own),
    )
    return job, Configuration(knobs)


def of_rows(rows: list[Row], kb: Path) -> tuple[str, bool, float, float, float, PricedTrace]:
    """(name, whether stages differ, measured, analytic and traced seconds, the traced components)."""
    job, configuration = job_of(rows[0])
    if job.launch.transformer_engine:
        ranks = shadow(ShadowAsked(job, configuration, "", kb, LIMIT_S)).ranks
    else:
        micro = micro_batches(job, configuration)
        ranks = [_of(r, micro) for r in _asked(_with_apex(question_of(job, configuration)), kb)]
    knobs, device = configuration.knobs, hardware(job.cluster.nodes[0].device)
    assert device
    copies = job.model.topk if job.model.experts else 0
    price = priced(ranks, knobs, device, job.model.dtype, copies=copies)
    if price is None:
        raise SystemExit(f"{job.name}: {ranks[0].verdict} {ranks[0].message} {ranks[0].where}")
    layout = "".join(f"{n}{knobs[n]}" for n in ("tp", "pp", "vpp", "cp", "ep", "dp", "mbs") if knobs.get(n, 1) != 1)
    what = f"{job.name} {rows[0]['gpu']} {job.devices} {layout} gbs{job.traffic.global_batch}"
    measured = statistics.median(step_seconds(rows))
    closed = float(Training().predict(columns_of(rows[:1])).value[0])
    return what, "stage_split" in knobs and knobs["stage_split"] != "even", measured, closed, price.step_s, price


def of_recipe(recipe: Recipe, kb: Path) -> tuple[str, bool, float, float, float, PricedTrace]:
    with open(TABLE, newline="") as file:
        rows = [{**r, "model": r["case"]} for r in csv.DictReader(file)]
    rows = [r for r in rows if r["case"] == recipe.case and r["gpu"] == recipe.gpu and r["n_gpus"]]
    pp, vpp = (recipe.flags.get(f"--{name}", 1) for name in (_PP, _VPP))
    tp = recipe.flags["--tensor-model-parallel-size"]
    ranks = _asked(recipe.question(), kb)
    dp = recipe.world // (tp * pp)
    micro = recipe.flags["--global-batch-size"] // (recipe.flags["--micro-batch-size"] * dp)
    device = hardware(DEVICES[recipe.gpu])
    assert device
    knobs = {"tp": tp, "pp": pp, "vpp": vpp, "dp": dp, "overlap_grad": True, "overlap_param": True, "overlap_p2p": True}
    price = priced([_of(rank, micro) for rank in ranks], knobs, device, "bf16")
    assert price
    measured = statistics.median(step_seconds(rows))
    closed = float(Training().predict(columns_of(rows[:1])).value[0])
    return f"CI {recipe.case} {recipe.gpu}", False, measured, closed, price.step_s, price


def _asked(question: dict[str, Any], kb: Path) -> list[Rank]:
    pp = question["arguments"].get(f"--{_PP}", 1)
    questions = [{**question, "rank": rank} for rank in stages(question["world"], pp)]
    nobodys = Job(name="", target="megatron", objective=Objective(minimize="step_time_s"))
    asked, python = ShadowAsked(nobodys, Configuration({}), kb=kb, limit_s=LIMIT_S), [sys.executable]
    return answers(asked, questions, python, versions_of(python))[0]


def _with_apex(question: dict[str, Any]) -> dict[str, Any]:
    """The question for the Megatron-LM of 2022 that Mist's authors ran, with a fused softmax and a fused Adam."""
    plain = ("--no-masked-softmax-fusion", "--attention-softmax-in-fp32", "--no-gradient-accumulation-fusion")
    flags = {name: value for name, value in question["arguments"].items() if name not in plain}
    return {**question, "arguments": flags, "stand_ins": True}


_PP, _VPP = "pipeline-model-parallel-size", "num-virtual-stages-per-pipeline-rank"


def _of(rank: Rank, micro: int) -> Rank:
    return replace(rank, micro_batches=micro)


def main() -> None:
    kb, *wanted = sys.argv[1:]
    lines = []
    print("| row | measured s | closed form | traced | its parts, s |\n|---|---|---|---|---|")
    for one in [*bridge(), *mist(), *(r for r in RECIPES if r.known)]:
        name = f"{one.case} {one.gpu}" if isinstance(one, Recipe) else f"{one[0]['model']} {one[0]['gpu']} "
        if wanted and not any(word in name for word in wanted):
            continue
        found = of_recipe(one, Path(kb)) if isinstance(one, Recipe) else of_rows(one, Path(kb))
        what, uneven, measured, closed, traced, price = found
        lines.append((uneven, np.log(closed / measured), np.log(traced / measured)))
        parts = " ".join(f"{n} {s:.2f}" for n, s in {**price.parts, "bubble": price.bubble_s}.items() if s > 0.005)
        print(
            f"| {what} | {measured:.3f} | {closed:.3f} ({closed / measured - 1:+.1%}) | {traced:.3f} "
            f"({traced / measured - 1:+.1%}) | {parts} |",
            flush=True,
        )
    for title, some in (("all", lines), ("stages of unequal layers", [line for line in lines if line[0]])):
        closed, traced = (np.abs(np.expm1([line[i] for line in some])) for i in (1, 2))
        if some:
            print(f"{title}: {len(some)} rows, closed form {closed.mean():.1%}, traced {traced.mean():.1%}")


if __name__ == "__main__":
    main()
