"""The decisions of a session's final rounds, from costs alone: what the next round measures, and what is proven.

    round 1, 2 ──► look ──► proven, or more rounds would gain too little, or the limit: over
       ▲                └─► who may still win, and the reference ──┐
       └───────────────────────────────────────────────────────────┘

The rounds end when more of them, up to the limit, are expected to improve the choice and the proven gain by less than
WORTH; on a quiet machine they end after two. Configurations that cannot win are dropped after each round (on a noisy
machine with many finalists even after the first: sequential halving, Karnin, Koren and Somekh 2013). What is proven and
what is recommended are separate questions, since something has to be recommended in any case (choice.py).
"""

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache

import msgspec
import numpy as np

from autoscout.tuning import evidence
from autoscout.tuning.choice import FinalChoice, choice
from autoscout.tuning.evidence import Contrast, Fit, Round, expected_excess
from autoscout.tuning.modes import EXPECTED, Division, divisions
from autoscout.tuning.repeats import Noise

WORTH = 0.001  # smallest expected relative gain for which more rounds are run
_LEFT_OUT = 0.25  # a finalist is dropped if its expected gain is below this share of WORTH
_MANY = 3  # with more finalists than this, a noisy machine drops some after the first round
MOVED = 0.01  # relative change of the reference's cost, beyond its noise, that means that the machine has changed
_STEADY_LOOK = 4  # if the machine has changed, no gain counts as proven before this number of rounds


Divided = list[tuple[Division, list[float]]]


@lru_cache(maxsize=64)  # because every decision evaluates all rounds again
def _divided(reference: str, anchors: tuple[float, ...], rounds: tuple[tuple[tuple[str, float], ...], ...]) -> Divided:
    """Plausible divisions of the rounds' runs into usual and slow ones (modes.py), most probable first, each with the
    costs of those anchors that were not slow. The anchors are treated as one more round."""
    n = sum(map(len, rounds))
    names, design, y = evidence.design_of([*rounds, [(reference, cost) for cost in anchors]])
    return [
        (
            Division(found.slow[:n], found.shared),
            [cost for cost, slow in zip(anchors, found.slow[n:], strict=True) if not slow],
        )
        for found in divisions(design, y, len(names))
    ]


class Trial(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Makes the decisions. `finalists`: ids, without the reference's; `reference`: id; `limit`: largest number
    of rounds; `anchors`: the reference's costs during the search; `believed`: the search's posterior, see
    choice.Beliefs."""

    finalists: list[str]
    reference: str
    limit: int
    anchors: list[float] = []
    believed: dict[str, tuple[float, float]] = {}

    @cached_property
    def before(self) -> Noise:
        """The scatter of the reference's costs during the search."""
        return Noise.of(self.anchors)

    @cached_property
    def plan(self) -> dict[int, float]:
        return evidence.plan(self.limit, self.before)

    def share(self, rounds: int) -> float:
        """Each finalist's share of the error probability of 5 % in the look after this number of rounds. If a session
        has to end between two planned looks, the share of the next look applies."""
        at = next((weight for look, weight in self.plan.items() if look >= rounds), 0.0) if rounds > 1 else 0.0
        return at / max(1, len(self.finalists))

    def fit(self, rounds: Sequence[Round]) -> Fit:
        share, found = self.share(len(rounds)), self._divisions(rounds)
        if not found:
            return evidence.fit(rounds, share, self.before)
        first, *others = [evidence.fit(rounds, share, Noise.of(anchors), slow) for slow, anchors in found]
        return msgspec.structs.replace(first, others=others)

    def _divisions(self, rounds: Sequence[Round]) -> Divided:
        return _divided(self.reference, tuple(self.anchors), tuple(map(tuple, rounds)))

    # ---- what the next round measures ------------------------------------------------------------------------------

    def order(self, rounds: Sequence[Round], active: Sequence[str]) -> list[str]:
        """A new random order for each round; in a fixed order, each run would always follow the same configuration."""
        drawn = np.random.default_rng((len(rounds), len(self.finalists), 26)).permutation(len(active))
        return [active[int(i)] for i in drawn]

    def active(self, rounds: Sequence[Round]) -> list[str]:
        """The configurations of the next round; [] if no more rounds are needed."""
        everything = [*self.finalists, self.reference]
        n = len(rounds)
        if n >= self.limit:
            return []
        for done in range(1, n + 1):  # repeats earlier decisions, so that dropped configurations stay dropped
            if everything and (done > 1 or self._screens):
                everything = self._after(rounds[:done], everything)
        if n < 2:  # the reference runs twice, because all are compared with it (Dunnett 1955)
            return [*everything, self.reference]
        return everything

    @property
    def _screens(self) -> bool:
        return len(self.finalists) > _MANY and self.before.dof > 1 and not self.before.quiet

    def _after(self, rounds: Sequence[Round], active: list[str]) -> list[str]:
        """The configurations that are not dropped after a round; [] (only at a planned look) ends the rounds."""
        last = dict(rounds[-1])
        ran = [name for name in active if name in last]
        fit, look = self.fit(rounds), len(rounds) in self.plan
        candidates = [name for name in ran if name != self.reference]
        if not candidates or (look and fit.quiet and not self.moved(rounds, fit)):
            return []
        chosen = self.choice(fit)
        leader = min(ran, key=chosen.level.__getitem__)
        known = 1 - fit.rounds / self.limit
        each = [chosen, *(self.choice(other) for other in fit.others)]
        worth = {name: max(c.gain(leader, name, known) for c in each) for name in ran if name != leader}
        if self.reference in ran and not self._proven(rounds, fit):
            for name in candidates:
                worth[name] = max(worth.get(name, 0.0), self._proof(fit, chosen, name))
        if look and max(worth.values(), default=0.0) < WORTH:
            return []
        kept = [name for name in candidates if name == leader or worth[name] >= _LEFT_OUT * WORTH]
        return [*kept, self.reference] if self.reference in ran else kept

    def choice(self, fit: Fit) -> FinalChoice:
        return choice(fit, self.believed)

    def _proof(self, fit: Fit, chosen: FinalChoice, name: str) -> float:
        """Expected gain of `name` over the reference that will be proven when the limit is reached."""
        contrast = fit.likeliest(self.reference, name)
        mean, error = chosen.gap(self.reference, name)
        done = fit.rounds / self.limit
        later = contrast.error * math.sqrt(done)
        needed = later * evidence.quantile(self.share(self.limit), fit.dof + self.limit - fit.rounds)
        middle = done * contrast.log + (1 - done) * mean
        spread = math.sqrt((1 - done) ** 2 * error**2 + (1 - done) * later**2)
        chance = float(evidence.ndtr((middle - needed) / spread))
        believed = EXPECTED**2 / (EXPECTED**2 + later**2)
        return believed * (needed * chance + expected_excess(middle - needed, spread))

    # ---- what is proven --------------------------------------------------------------------------------------------

    def proven(self, rounds: Sequence[Round]) -> list[str]:
        """The configurations that are cheaper than the reference in their whole interval, cheapest first."""
        return self._proven(rounds, self.fit(rounds))

    def _proven(self, rounds: Sequence[Round], fit: Fit) -> list[str]:
        if self.reference not in fit.level or (len(rounds) < _STEADY_LOOK and self.moved(rounds, fit)):
            return []
        last = dict(rounds[-1])
        found = [name for name in self.finalists if name in last and self.against(fit, name).low > 0]
        return sorted(found, key=fit.level.__getitem__)

    def against(self, fit: Fit, name: str) -> Contrast:
        """log(cost of the reference / cost of `name`): above 0, `name` is cheaper."""
        return fit.contrast(self.reference, name)

    def moved(self, rounds: Sequence[Round], fit: Fit) -> bool:
        """Whether the reference's cost has changed since the search, which makes early rounds unreliable: all runs of
        the reference may have been slow by chance."""
        found, runs = self._divisions(rounds), [each for row in rounds for each in row]
        slow, anchors = (found[0][0].slow, found[0][1]) if found else ([False] * len(runs), self.anchors)
        now = [math.log(c) for (name, c), off in zip(runs, slow, strict=True) if name == self.reference and not off]
        if not anchors or not now:
            return False
        before = np.log(anchors)
        tolerance = MOVED + 3 * fit.noise * math.sqrt(1 / len(now) + 1 / len(before))
        return abs(float(np.mean(now)) - float(before.mean())) > tolerance
