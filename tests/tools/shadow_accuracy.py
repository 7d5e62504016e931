"""Traced against measured: the peak memory of shadows beside what Megatron-LM's CI measured (docs/shadow.md's table).

PYTHONPATH=. python tests/tools/shadow_accuracy.py [--parts] [CASE …]

`--parts`: composed of traces of shallow jobs, which take a tenth of the time (recipes without chunks).
"""

import math
import statistics
import sys

from shadow_recipes import RECIPES, Recipe, measured

from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.shadow.composed import Depth, composed
from autoscout.simulate.shadow.traced import DOUBTED_ERROR, EARLY, ERROR, GIB, OUT_OF_BALANCE, Rank
from autoscout.targets.megatron.shadow import ask
from autoscout.targets.megatron.shadow_parts import small
from kb.records import Configuration

LIMIT_S = 1200.0


def whole(recipe: Recipe, imbalances: list[float]) -> list[Rank]:
    return ask([recipe.question(i) for i in imbalances], [sys.executable], LIMIT_S)


def from_parts(recipe: Recipe, imbalances: list[float]) -> list[Rank]:
    """The last rank, of stages that are 2 and 3 layers deep; the recipe has one chunk a stage."""
    flags = recipe.flags
    degrees = {name: int(flags.get(f"--{of}-model-parallel-size", 1)) for name, of in DEGREES.items()}
    knobs = {**degrees, "mbs": flags["--micro-batch-size"], "distopt": True}
    stages, replicas = min(degrees["pp"], 2), recipe.world // (degrees["tp"] * degrees["pp"])
    depths = [Depth(2, stages), Depth(3, stages)]
    asked = [
        small(recipe.question(), Configuration(knobs), -1, depth, imbalance)
        for imbalance in imbalances
        for depth in depths
    ]
    found = ask(asked, [sys.executable], LIMIT_S)
    if broken := [rank for rank in found if rank.verdict != "starts"]:
        return broken
    wanted = Depth(flags["--num-layers"] / degrees["pp"], stages)
    pairs = [found[i : i + 2] for i in range(0, len(found), 2)]
    return [composed(list(zip(depths, pair, strict=True)), wanted, replicas, sharded=True) for pair in pairs]


DEGREES = {"tp": "tensor", "pp": "pipeline", "ep": "expert"}


def interval(recipe: Recipe, ranks: list[Rank]) -> tuple[float, float]:
    """GiB: as autoscout/simulate/shadow/verdict.py states it."""
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
