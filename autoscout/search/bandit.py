"""The orchestrator's bandit (paper §3.3, equation 1).

    a_t = argmax_a [ Q_a / N_a + C(t) √( ln N_total / N_a ) ],   C(t) = C₀ γᵗ

Q_a: cumulative reward of arm a · N_a: its pulls · C₀, γ: exploration and its decay.
"""

import math

ARMS: tuple[str, ...] = ("SPARSE", "DENSE")
_SHARE = 0.2  # cap on the exploration bonus, as a share of the best predicted gain
_MOST = 3.0  # cap on one experiment's reward, as a multiple of its promise


class UCB1:
    def __init__(self, c0: float, gamma: float, arms: tuple[str, ...] = ARMS) -> None:
        self.c0 = c0
        self.gamma = gamma
        self.q = dict.fromkeys(arms, 0.0)
        self.n = dict.fromkeys(arms, 0.0)
        self.kept = dict.fromkeys(arms, 0.0)

    def index(self, t: int) -> dict[str, float]:
        """The bracket of equation 1 for each arm; an arm that was never pulled comes first."""
        total = max(sum(self.n.values()), 1.0)
        c = self.c0 * self.gamma**t
        return {a: self.q[a] / n + c * math.sqrt(math.log(total) / n) if n else math.inf for a, n in self.n.items()}

    def expecting(self, gains: dict[str, float], pulls: float) -> dict[str, float]:
        """`index` for arms whose proposals come with a predicted gain, weighted by how much of its predictions the arm
        kept so far (the mean of earned over promised, with `pulls` kept ones as a prior). So no arm needs a first pull,
        one that earns little of what it promises starves, and one large promise that failed weighs no more than a
        small one."""
        total = sum(self.n.values()) + pulls
        c0 = min(self.c0, _SHARE * max(gains.values()))
        index = {}
        for a, gain in gains.items():
            kept = (self.kept[a] + pulls) / (self.n[a] + pulls)
            index[a] = gain * kept + c0 * math.sqrt(math.log(total) / (self.n[a] + pulls))
        return index

    def age(self) -> None:
        """Discounts old rewards: gains shrink by orders of magnitude during a search, and once next to nothing is
        promised the arms take turns."""
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
        """Shrinks the statistics to a prior of at most `pulls` pulls per arm; means stay (fidelity switch)."""
        for arm in self.n:
            if self.n[arm] > pulls:
                self.q[arm] *= pulls / self.n[arm]
                self.n[arm] = pulls

    def state(self) -> dict[str, list[float]]:
        """Arm → [pulls, mean reward]."""
        return {a: [self.n[a], self.q[a] / self.n[a] if self.n[a] else 0.0] for a in self.n}
