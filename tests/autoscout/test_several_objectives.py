"""Several objectives at once: the front is found, not only the best by the first."""

import itertools

import numpy as np
import pytest

from autoscout.job.objective import costs, others
from autoscout.search.strategy import strategy
from autoscout.space.graph import Space
from kb.records import AutoscoutError, Configuration, Measurement, Objective, Value

BEST = {"batch": 1, "tp": 4, "chunk": 8, "blocks": 16, "eager": False}
BOTH = Objective(minimize="latency_ms", also=["maximize tokens_per_s"])


def space(objective: Objective) -> Space:
    rows: list[dict[str, Value]] = [
        {"batch": 2**b, "tp": 2**t, "chunk": 2**c, "blocks": 2**k, "eager": e}
        for b, t, c, k, e in itertools.product(range(9), range(4), range(6), range(8), (False, True))
    ]
    return Space.from_table(rows, ["tp", "eager"], ["batch", "chunk", "blocks"], objective)


def measure(c: Configuration) -> Measurement:
    """Larger batches: more tokens, and each waits longer; the other knobs have one best value each."""
    batch, tp, chunk, blocks = (np.log2(float(c.knobs[n])) for n in ("batch", "tp", "chunk", "blocks"))
    lost = (
        1 + 0.2 * (tp - 2) ** 2 + 0.1 * (chunk - 3) ** 2 + 0.1 * (blocks - 4) ** 2 + (0.5 if c.knobs["eager"] else 0.0)
    )
    step = 10 * lost * 2 ** (0.8 * batch)
    return Measurement(
        configuration=c,
        name="",
        context="",
        status="ok",
        metrics={"latency_ms": step, "tokens_per_s": 2**batch / step},
    )


def found(objective: Objective, seed: int, experiments: int = 24) -> tuple[float, Configuration | None]:
    """How far what was measured stays behind the nine configurations of the true front, as a factor (mean over them),
    and what is recommended."""
    chosen = strategy("autoscout", space(objective), seed)
    seen = []
    for _ in range(experiments):
        measured = [measure(c) for c in chosen.ask()]
        seen += [costs(BOTH, m) for m in measured]
        chosen.tell(measured)
        chosen.drain()
    front = np.array([costs(BOTH, measure(Configuration({**BEST, "batch": 2**b}))) for b in range(9)])
    behind = np.max(np.array(seen)[:, None] / front[None], axis=2).min(axis=0)
    return float(behind.mean()), chosen.recommend()


@pytest.mark.thorough
def test_the_front_is_found_and_the_first_objective_is_not_lost():
    both = [found(BOTH, seed) for seed in range(3)]
    first = [found(Objective(minimize="latency_ms"), seed) for seed in range(3)]
    assert np.mean([behind for behind, _ in both]) < 1.6
    assert np.mean([behind for behind, _ in both]) < np.mean([behind for behind, _ in first])
    for _, best in both:
        assert best is not None
        assert measure(best).metrics["latency_ms"] < 1.5 * measure(Configuration(BEST)).metrics["latency_ms"]


def test_a_run_that_lacks_one_of_the_metrics_does_not_count():
    c = space(BOTH).sample(np.random.default_rng(0))
    whole = measure(c)
    assert costs(BOTH, whole) == [whole.metrics["latency_ms"], 1 / whole.metrics["tokens_per_s"]]
    half = Measurement(configuration=c, name="", context="", status="ok", metrics={"latency_ms": 1.0})
    assert costs(BOTH, half) is None


def test_what_is_no_objective_is_refused():
    with pytest.raises(AutoscoutError, match="write for example minimize ttft_p99_ms"):
        others(Objective(minimize="latency_ms", also=["ttft_p99_ms"]))
