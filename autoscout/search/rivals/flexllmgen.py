"""FlexLLMGen's policy search: for every GPU batch and number of batches a linear program finds the shares, and the
fastest of them, rounded to what the space has, is tried first.

On a space without its knobs there is nothing to solve: then it is a search in random order.
"""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.simulate.serving.offloading import GB, Generation, Machine, evaluate, solve

_SHARES = {"w_gpu": "wg", "w_cpu": "wc", "c_gpu": "cg", "c_cpu": "cc", "h_gpu": "hg"}
_NEAR = 3  # policies tried around each solution


def by_linear_program(pool: Pool, rng: np.random.Generator) -> Search:
    for row in _solved(pool) if {*_SHARES, "gpu_batch", "gpu_batches"} <= pool.space.knob.keys() else ():
        if pool.open[row]:
            yield row
    for row in rng.permutation(len(pool)):
        yield int(row)


def _solved(pool: Pool) -> list[int]:
    """Rows next to the solutions, the fastest solution first."""
    asked = _asked(pool)
    if asked is None:
        return []
    generation, machine = asked
    columns = pool.space.feasible.columns()
    found: list[tuple[float, list[int]]] = []
    for batch in pool.space.knob["gpu_batch"].values:
        for batches in pool.space.knob["gpu_batches"].values:
            shares = solve(generation, machine, int(batch), int(batches))
            if shares is None:
                continue
            rows = np.flatnonzero((columns["gpu_batch"] == batch) & (columns["gpu_batches"] == batches))
            if not len(rows):
                continue
            at = evaluate(generation, machine, int(batch), int(batches), shares)
            far = sum(np.abs(columns[knob][rows] - 100 * shares[share]) for knob, share in _SHARES.items())
            near = rows[np.argsort(far, kind="stable")[:_NEAR]]
            found.append((-float(at["output_tokens_per_s"]), [int(row) for row in near]))
    return [row for _, rows in sorted(found) for row in rows]


def _asked(pool: Pool) -> tuple[Generation, Machine] | None:
    """From the space's attributes: the model, the lengths, the GPU's memory."""
    a = pool.space.attributes
    prompt, longest = a.get("longest_input", 0), a.get("longest", 0)
    if not a.get("layers") or longest - prompt < 2:
        return None
    sizes = {name: a[name] for name in ("layers", "hidden", "ffn", "heads")}
    generation = Generation(prompt=prompt, tokens=longest - prompt, **sizes)
    return generation, Machine(gpu=a["memory_gib"] * GB)


STRATEGY = rival("flexllmgen", by_linear_program)
