"""Compares the peak memory of shadows (dry runs) with measurements by Megatron-LM's CI (docs/lab/shadow.md's table).

PYTHONPATH=. python tests/tools/shadow_accuracy.py [--parts] [CASE …]
PYTHONPATH=. python tests/tools/shadow_accuracy.py --record

`--parts`: composes traces of shallow jobs, which takes a tenth of the time (recipes without chunks). `--record`: writes
the memory of the dense recipes' traces to RECORDED, for a test without tracing."""

import math
import statistics
import sys
from pathlib import Path

import msgspec
from shadow_recipes import RECIPES, Recipe, measured

from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.shadow.composed import Depth, composed
from autoscout.simulate.shadow.traced import DOUBTED_ERROR, EARLY, ERROR, GIB, OUT_OF_BALANCE, Rank
from autoscout.targets.megatron.shadow import ask
from autoscout.targets.megatron.shadow_parts import small
from kb.records import Configuration

LIMIT_S = 1200.0
RECORDED = Path(__file__).parents[2] / "fixtures" / "recorded" / "shadow-parts.json"


def whole(recipe: Recipe, imbalances: list[float]) -> list[Rank]:
    return ask([recipe.question(i) for i in imbalances], [sys.executable], LIMIT_S)


def from_parts(recipe: Recipe, imbalances: list[float]) -> list[Rank]:
    """The composed trace of the last rank, for a recipe with one chunk per stage."""
    found = shallow(recipe, imbalances)
    if broken := [rank for rank in found if rank.verdict != "starts"]:
        return broken
    return [joined(recipe, found[i : i + 2]) for i in range(0, len(found), 2)]


def shallow(recipe: Recipe, imbalances: list[float]) -> list[Rank]:
    """Traces of the last rank with 2 and 3 layers per stage, for each expert imbalance."""
    degrees = _degrees(recipe)
    knobs = {**degrees, "mbs": recipe.flags["--micro-batch-size"], "distopt": True}
    asked = [
        small(recipe.question(), Configuration(knobs), -1, depth, imbalance)
        for imbalance in imbalances
        for depth in _depths(degrees)
    ]
    return ask(asked, [sys.executable], LIMIT_S)


def joined(recipe: Recipe, pair: list[Rank]) -> Rank:
    degrees = _degrees(recipe)
    replicas = recipe.world // (degrees["tp"] * degrees["pp"])
    wanted = Depth(recipe.flags["--num-layers"] / degrees["pp"], min(degrees["pp"], 2))
    return composed(list(zip(_depths(degrees), pair, strict=True)), wanted, replicas, sharded=True)


def _degrees(recipe: Recipe) -> dict[str, int]:
    return {name: int(recipe.flags.get(f"--{of}-model-parallel-size", 1)) for name, of in DEGREES.items()}


def _depths(degrees: dict[str, int]) -> list[Depth]:
    return [Depth(layers, min(degrees["pp"], 2)) for layers in (2, 3)]


def kept(rank: Rank) -> Rank:
    """The trace with only its memory."""
    return Rank(
        rank=rank.rank, verdict=rank.verdict, parameters=rank.parameters, built=rank.built, peak=rank.peak,
        reserved=rank.reserved, steps=rank.steps, micro_batches_traced=rank.micro_batches_traced,
        replicas=rank.replicas, at_peak=rank.at_peak, left=rank.left,
    )  # fmt: skip


def recorded() -> dict[str, list[Rank]]:
    """The recorded shallow traces of dense recipes, by case and GPU."""
    return msgspec.json.decode(RECORDED.read_bytes(), type=dict[str, list[Rank]])


def record() -> None:
    dense = [r for r in RECIPES if r.dense and r.flags.get("--num-virtual-stages-per-pipeline-rank", 1) == 1]
    found = {f"{r.case} {r.gpu}": [kept(rank) for rank in shallow(r, [1.0])] for r in dense}
    RECORDED.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


DEGREES = {"tp": "tensor", "pp": "pipeline", "ep": "expert"}


def interval(recipe: Recipe, ranks: list[Rank]) -> tuple[float, float]:
    """The interval of the peak in GiB, as in autoscout/simulate/shadow/verdict.py."""
    error = ERROR if recipe.dense else DOUBTED_ERROR
    low, *more = (rank.steps[-1].forward_backward / GIB for rank in ranks)
    early = [low + (value - low) * (EARLY - 1) / (OUT_OF_BALANCE - 1) for value in more]
    return low * math.exp(-SPAN * error), max(
        low * math.exp(SPAN * error), *(v * math.exp(SPAN * ERROR) for v in early), 0
    )


def row(recipe: Recipe, parts: bool) -> str:
    imbalances = [1.0] if recipe.dense else [1.0, OUT_OF_BALANCE]
    ranks = (from_parts if parts else whole)(recipe, imbalances)
    if broken := next((rank for rank in ranks if rank.verdict != "starts"), None):
        return (
            f"| {recipe.case} | {recipe.gpu} | {broken.verdict}: {broken.type} {broken.message[:200]} {broken.where} |"
        )
    seen = measured(recipe)
    newest, usual = seen[0] / GIB, statistics.median(seen) / GIB
    said = []
    for imbalance, rank in zip(imbalances, ranks, strict=True):
        gib = rank.steps[-1].forward_backward / GIB
        at = "" if recipe.dense else f" (×{imbalance:g})"
        said.append(f"{gib:.3f}{at}: {100 * (gib / newest - 1):+.3f} % / {100 * (gib / usual - 1):+.3f} %")
    low, high = interval(recipe, ranks)
    world = f"{recipe.world}" if recipe.known else f"{recipe.world} (inferred)"
    spread = f"{min(seen) / GIB:.3f} to {max(seen) / GIB:.3f}, {len(seen)} runs"
    inside = sum(low <= value / GIB <= high for value in seen)
    return (
        f"| {recipe.case} | {recipe.gpu} | {world} | {newest:.3f} ({spread}) | {'; '.join(said)} | "
        f"{low:.2f} to {high:.2f}: {inside} of {len(seen)} | {ranks[0].steps[-1].left / GIB:.3f} |"
    )


def main() -> None:
    if "--record" in sys.argv:
        record()
        return
    wanted = [word for word in sys.argv[1:] if word != "--parts"]
    parts = "--parts" in sys.argv
    print(
        "| case | GPU | ranks | measured GiB, newest (of all) | traced: to newest / to median | 90 % interval | left |"
    )
    print("|---|---|---|---|---|---|---|")
    for recipe in RECIPES:
        chunks = recipe.flags.get("--num-virtual-stages-per-pipeline-rank", 1)
        if parts and chunks > 1:
            continue
        if not wanted or any(word in f"{recipe.case} {recipe.gpu}" for word in wanted):
            print(row(recipe, parts), flush=True)


if __name__ == "__main__":
    main()
