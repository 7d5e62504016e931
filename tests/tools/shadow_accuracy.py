"""Traced against measured: the peak memory of shadows beside what Megatron-LM's CI measured (docs/shadow.md's table).

PYTHONPATH=. python -m tests.tools.shadow_accuracy [CASE …]
"""

import statistics
import sys

from shadow_recipes import RECIPES, Recipe, measured

from autoscout.simulate.shadow.traced import GIB, OUT_OF_BALANCE
from autoscout.simulate.shadow.verdict import peak
from autoscout.targets.megatron.shadow import ask

LIMIT_S = 1200.0


def row(recipe: Recipe) -> str:
    imbalances = [1.0] if recipe.dense else [1.0, OUT_OF_BALANCE]
    ranks = ask([recipe.question(i) for i in imbalances], [sys.executable], LIMIT_S)
    seen = measured(recipe)
    newest, usual = seen[0] / GIB, statistics.median(seen) / GIB
    parts = []
    for imbalance, rank in zip(imbalances, ranks, strict=True):
        if rank.verdict != "starts":
            return f"| {recipe.case} | {recipe.gpu} | {rank.verdict}: {rank.type} {rank.message[:200]} {rank.where} |"
        gib = rank.steps[-1].forward_backward / GIB
        at = "" if recipe.dense else f" (×{imbalance:g})"
        parts.append(f"{gib:.3f}{at}: {100 * (gib / newest - 1):+.3f} % / {100 * (gib / usual - 1):+.3f} %")
    assert peak(ranks[0]) >= ranks[0].steps[-1].forward_backward
    world = f"{recipe.world}" if recipe.known else f"{recipe.world} (inferred)"
    spread = f"{min(seen) / GIB:.3f} to {max(seen) / GIB:.3f}, {len(seen)} runs"
    cost = sum(rank.cpu_s for rank in ranks)
    return (
        f"| {recipe.case} | {recipe.gpu} | {world} | {newest:.3f} ({spread}) | {'; '.join(parts)} | "
        f"{ranks[0].operators:,} | {cost:.1f} |"
    )


def main() -> None:
    wanted = sys.argv[1:]
    print("| case | GPU | ranks | measured GiB, newest (of all) | traced: to newest / to median | operators | CPU s |")
    print("|---|---|---|---|---|---|---|")
    for recipe in RECIPES:
        if not wanted or any(word in f"{recipe.case} {recipe.gpu}" for word in wanted):
            print(row(recipe), flush=True)


if __name__ == "__main__":
    main()
