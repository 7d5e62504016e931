"""The orchestrator's bandit (paper §3.3, equation 1) and its reward, the difference of differences.

    a_t = argmax_a [ Q_a / N_a + C(t) √( ln N_total / N_a ) ],   C(t) = C₀ γᵗ

Q_a: cumulative reward of arm a · N_a: its pulls · C₀, γ: exploration and its decay.

In the default strategy, an arm's proposal has a predicted gain, which replaces Q_a / N_a after multiplication by the
arm's past mean of (reward / predicted gain), see `expecting`."""

import math

ARMS: tuple[str, ...] = ("SPARSE", "DENSE")
# Beyond the paper, these limits prevent a single lucky or hopeless experiment from dominating all further decisions.
_SHARE = 0.2  # cap on the exploration bonus, as a share of the best predicted gain
_MOST = 3.0  # cap on reward / predicted gain of one experiment


class UCB1:
    def __init__(self, c0: float, gamma: float, arms: tuple[str, ...] = ARMS) -> None:
        self.c0 = c0
        self.gamma = gamma
        self.q = dict.fromkeys(arms, 0.0)
        self.n = dict.fromkeys(arms, 0.0)
        self.kept = dict.fromkeys(arms, 0.0)

    def join(self, arm: str) -> None:
        for sums in (self.q, self.n, self.kept):
            sums.setdefault(arm, 0.0)

    def index(self, t: int) -> dict[str, float]:
        """The term in brackets of equation 1 for each arm; infinite for arms that were never pulled."""
        total, c = max(sum(self.n.values()), 1.0), self.c0 * self.gamma**t
        return {a: _bound(self.q[a] / n, n, total, c) if n else math.inf for a, n in self.n.items()}

    def expecting(self, gains: dict[str, float], pulls: float) -> dict[str, float]:
        """Like `index`, for arms whose proposals have predicted `gains`. The mean reward is the predicted gain times
        the arm's mean of (reward / predicted gain), with a prior of 1 that counts as `pulls` pulls. So no arm needs a
        first pull, arms with too high predictions are chosen rarely, and a wrong prediction of a large gain counts no
        more than that of a small gain."""
        total, c = sum(self.n.values()) + pulls, min(self.c0, _SHARE * max(gains.values()))
        index = {}
        for a, gain in gains.items():
            n = self.n[a] + pulls
            index[a] = _bound(gain * ((self.kept[a] + pulls) / n), n, total, c)
        return index

    def age(self) -> None:
        """Discounts old rewards, because gains shrink by orders of magnitude during a search."""
        for arm in self.n:
            self.q[arm] *= self.gamma
            self.kept[arm] *= self.gamma
            self.n[arm] *= self.gamma

    def select(self, t: int) -> str:
        index = self.index(t)
        return max(index, key=index.__getitem__)

    def update(self, arm: str, reward: float, promised: float = 0.0) -> None:
        self.q[arm] += reward
        self.kept[arm] += min(reward / promised, _MOST) if promised > 0 else 0.0
        self.n[arm] += 1

    def weaken(self, pulls: float) -> None:
        """Reduces the weight of the statistics to at most `pulls` pulls per arm without changing the means, when
        evaluation switches from simulation to experiments."""
        for arm in self.n:
            if self.n[arm] > pulls:
                self.q[arm] *= pulls / self.n[arm]
                self.n[arm] = pulls

    def state(self) -> dict[str, list[float]]:
        return {a: [self.n[a], self.q[a] / self.n[a] if self.n[a] else 0.0] for a in self.n}


def _bound(mean: float, pulls: float, total: float, c: float) -> float:
    return mean + c * math.sqrt(math.log(total) / pulls)


def improvements(costs: list[float | None], failed: float | None) -> tuple[float, float]:
    """(Δ_sparse, Δ_dense) from the costs of a grid (bb, bc, cb, cc). The first letter is the structure, the second the
    dense point; b: base, c: candidate."""
    bb, bc, cb, cc = costs
    return mean_improvement([(bb, cb), (bc, cc)], failed), mean_improvement([(bb, bc), (cb, cc)], failed)


def mean_improvement(pairs: list[tuple[float | None, float | None]], failed: float | None) -> float:
    """Mean of (before − after) / before over the (before, after) pairs of costs; 0 without pairs. Pairs without
    `before` are skipped; if `after` is None (a failure), the pair counts as an improvement of `failed`, or is skipped
    if `failed` is None."""
    gains = [failed if after is None else (before - after) / before for before, after in pairs if before is not None]
    known = [gain for gain in gains if gain is not None]
    return sum(known) / len(known) if known else 0.0
