"""The ensemble (AutoScout paper, appendix B): its members are simulators, weighted by their accuracy on held-out rows.

For predictions ĉᵢ of the members and ĉ of the ensemble:
Published rule: ĉ = Σ wᵢ ĉᵢ, wᵢ = max(0, Rᵢ²) / Σ max(0, Rⱼ²) (equation 2).
Stacked rule: log ĉ = Σ wᵢ log ĉᵢ, w ≥ 0, Σ w = 1, by least squares on the held-out log errors (Breiman, "Stacked
regressions", 1996), shrunk towards weights by the members' precisions while there are few rows.

Nested cross-validation chooses the rule with the smaller error. Each pair of framework and device has its own weights,
shrunk towards the global ones, because a member that is accurate for one engine may be inaccurate for another. For
frameworks without measured rows (or, if all rows are of one framework, for another version or device), weights and
interval come from holding out whole frameworks, shrunk towards the uncorrected analytic members. So the weight of a
correction depends on how much it helps on frameworks that it was not fitted on. A member loses weight on rows that it
cannot predict, and on rows for which it states a larger error than usual."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from autoscout.simulate.encode import family_of, job_of, length, software_of, take
from autoscout.simulate.learned import weighing
from autoscout.simulate.member import Columns, Member, Prediction

Rule = Literal["published", "stacked", "best"]

_FOLDS = 5  # number of cross-validation folds, a usual choice
_GROUPS = 2  # from this number of jobs on, folds consist of whole jobs
_FEW = 12  # with fewer rows, each row is its own fold
_MANY = 2000  # from this number of rows on, three folds suffice to estimate the error
_ALL = 10.0  # strength of the shrinkage towards the global weights, in measured rows of the same framework and device
_SURE = 0.9  # a row on which the members keep less than this share of their weight is predicted by all others, too
_LEARNED = 1.0  # prior log error of a learned member, so large that it needs measurements to get weight
_ELSEWHERE = -1.0  # replaces the hash of framework and device in rows whose framework has no fitted rows

Own = dict[float, tuple[np.ndarray, np.ndarray]]  # hash of framework and device → ((m,) weights, (m,) usual errors)


class MemberPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """One member's prediction of one row. `error`: standard deviation of log(value), the larger of the stated error and
    the usual error on held-out rows; `held_out`: its MAPE on held-out rows; `why`: why its weight is low or 0."""

    member: str
    value: float | None
    weight: float
    error: float | None
    held_out: float | None
    why: str


class Ensemble:
    """A weighted combination of members that is a Member itself. `weights`: by member, with sum 1, or empty if no
    member has weight; `mape`, `r2`: of each member on held-out rows; `error`: the ensemble's MAPE on held-out rows."""

    name = "ensemble"

    def __init__(self, members: Sequence[Member], rule: Rule = "best") -> None:
        self.members, self._wanted = list(members), rule
        self.rule: Rule = "stacked" if rule == "best" else rule
        self.rows = 0
        self.r2: dict[str, float] = {}
        self.mape: dict[str, float] = {}
        self.error: float | None = None
        self.held_out = np.empty(0)  # out-of-fold predictions of the fitted rows
        self._w = np.zeros(len(self.members))
        self._s = np.full(len(self.members), _LEARNED)
        self._own: Own = {}
        self._stretch = self._stretch_elsewhere = 1.0
        self._origin_of, self._origins = software_of, np.empty(0)  # see `_of_other_origins`

    @property
    def weights(self) -> dict[str, float]:
        return {m.name: float(w) for m, w in zip(self.members, self._w, strict=True) if w > 0}

    @property
    def expected_error(self) -> float:
        """Expected mean absolute error of a prediction, as a fraction: measured on held-out rows, or else stated by the
        members."""
        if self.error is not None:
            return self.error
        claimed = (self._w * self._s).sum() if self._w.any() else math.inf
        return float(claimed) * math.sqrt(2 / math.pi)

    def applies(self, columns: Columns) -> str:
        reasons = {m.name: m.applies(columns) for m in self.members}
        return "" if not all(reasons.values()) else "; ".join(f"{name}: {why}" for name, why in reasons.items())

    def begin(self, columns: Columns) -> None:
        """Starts without measurements of the job: uses the members that need none, weighted by stated precision."""
        self._s, self._own = self._prior(columns), {}
        can = np.array([not m.applies(columns) for m in self.members])
        self._w = np.where(can, weighing.by_precision(self._s), 0.0)
        self._w = weighing.without_small(self._w) if can.any() else self._w

    def fit(self, columns: Columns, values: np.ndarray, groups: np.ndarray | None = None) -> None:
        """Fits all members and the weights. `groups`: (n,) the job of each row; if there are several, whole jobs are
        held out, so that weights and interval are valid for an unseen job."""
        columns, values = dict(columns), np.asarray(values, dtype=float)
        y, fold = np.log(values), _folds(len(values), groups)
        prior = self._prior(columns)
        L, E = self._out_of_fold(columns, values, fold)
        elsewhere = self._of_other_origins(columns, values, y)
        for member in self.members:
            member.fit(columns, values)
        self.rows = len(values)
        jobs = 0 if groups is None else len(np.unique(groups))
        whole = jobs >= _GROUPS
        alike = np.broadcast_to(job_of(columns), len(y)) if whole else np.arange(len(y))  # else each row is independent
        told = _Told(y, L, E, np.broadcast_to(software_of(columns), len(y)), alike)
        self._w, self._s, self._own = self._choose(told, fold, prior)
        mean, spread = self._combined(self._w, self._s, self._own, told.software, L, E)
        self._stretch = weighing.stretch(y, mean, spread, jobs if whole else 0)
        if elsewhere is not None and self.rule != "published":
            self._weigh_elsewhere(elsewhere, prior)
        self.held_out = np.exp(mean)
        self.error = _mape(y, mean)
        self.r2 = dict(zip(self._names, map(float, weighing.r_squared(y, L)), strict=True))
        self.mape = {n: e for i, n in enumerate(self._names) if (e := _mape(y, L[:, i])) is not None}

    def predict(self, columns: Columns) -> Prediction:
        weighty = np.any([self._w, *(w for w, _ in self._own.values())], axis=0)
        L, E, _ = self._ask(columns, weighty)
        software = self._software(columns, len(L))
        if self.rule != "published" and weighty.any():
            w, s = _of_rows(self._w, self._s, self._own, software)
            kept = (w * weighing.doubt(s, L, E)).sum(1)
            doubted = np.flatnonzero(kept < _SURE)  # other rows keep enough weight
            if len(doubted):
                others = ~weighty
                there, spread, _ = self._ask(take(columns, doubted), others)
                L[np.ix_(doubted, others)], E[np.ix_(doubted, others)] = there[:, others], spread[:, others]
        mean, spread = self._combined(self._w, self._s, self._own, software, L, E)
        return Prediction(value=_unless_failed(mean, L[:, weighty]), error=self._stretched(spread, software))

    def by_member(self, columns: Columns) -> dict[str, Prediction]:
        """The prediction of each member that applies, with an error of at least its usual error on held-out rows."""
        columns, found = dict(columns), {}
        for member, usual in zip(self.members, self._s, strict=True):
            if not member.applies(columns):
                said = member.predict(columns)
                found[member.name] = Prediction(value=said.value, error=np.maximum(said.error, usual), parts=said.parts)
        return found

    def explain(self, columns: Columns) -> tuple[Prediction, list[MemberPrediction]]:
        """The ensemble's prediction of the first row, each member's, and why some have less weight."""
        first = take(columns, np.array([0]))
        L, E, said = self._ask(first, np.ones(len(self.members), dtype=bool))
        software = self._software(first, 1)
        w, s = _of_rows(self._w, self._s, self._own, software)
        rows = self._row_weights(w, s, L, E)
        mean, spread = weighing.combine(rows, s, L, E, log=self.rule != "published")
        told = [
            MemberPrediction(
                member=m.name,
                value=_finite(p.value[0]),
                weight=float(rows[0, i]),
                error=_finite(np.maximum(p.error[0], self._s[i])),
                held_out=self.mape.get(m.name),
                why=self._why(m, first, i, bool(E[0, i] > self._s[i])),
            )
            for i, (m, p) in enumerate(zip(self.members, said, strict=True))
        ]
        value = _unless_failed(mean, L[:, self._w > 0])
        return Prediction(value=value, error=self._stretched(spread, software)), told

    # ---- fitting -----------------------------------------------------------------------------------------

    @property
    def _names(self) -> list[str]:
        return [m.name for m in self.members]

    def _prior(self, columns: Columns) -> np.ndarray:
        """(m,) log error of each member without measurements: as stated by analytic members, _LEARNED for learned
        ones."""
        prior = np.full(len(self.members), _LEARNED)
        for i, member in enumerate(self.members):
            if not hasattr(member, "min_rows") and not member.applies(columns):
                error = member.predict(columns).error
                prior[i] = float(np.nanmedian(error)) if np.isfinite(error).any() else _LEARNED
        return prior

    def _out_of_fold(self, columns: Columns, values: np.ndarray, fold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(L, E), both (n, m): log predictions and stated errors for each row, by members fitted on all folds except
        the row's own."""
        L = np.full((len(values), len(self.members)), np.nan)
        E = L.copy()
        for f in np.unique(fold):
            here, rest = fold == f, fold != f
            if rest.any():
                known, asked = take(columns, rest), take(columns, here)
                for member in self.members:
                    member.fit(known, values[rest])
                L[here], E[here], _ = self._ask(asked, np.ones(len(self.members), dtype=bool))
        return L, E

    def _choose(self, told: "_Told", fold: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray, Own]:
        """(w, s, own): global weights, global usual errors, and both by software. If the configured rule is "best", the
        rule with the smaller cross-validated error is used."""
        if self._wanted == "best":
            misses = {rule: self._nested_misses(rule, told, fold, prior) for rule in ("stacked", "published")}
            both = np.isfinite(misses["stacked"] + misses["published"])
            worse = misses["published"][both].mean() >= misses["stacked"][both].mean() if both.any() else True
            self.rule = "stacked" if worse else "published"
            if not worse and not weighing.published(told.y, told.L).any():  # all weights of the published rule are 0
                self.rule = "stacked"
        return self._weigh(told, prior)

    def _nested_misses(self, rule: Rule, told: "_Told", fold: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """(n,) absolute log errors of a weighting rule, each with weights fitted without the row's fold; NaN: no
        prediction."""
        self.rule = rule
        miss = np.full(len(told.y), np.nan)
        for f in np.unique(fold):
            here, rest = fold == f, fold != f
            mean, _ = self._combined(*self._weigh(told.take(rest), prior), *told.asked(here))
            miss[here] = np.abs(mean - told.y[here])
        return miss

    def _weigh(self, told: "_Told", prior: np.ndarray) -> tuple[np.ndarray, np.ndarray, Own]:
        w, s = self._weigh_alike(told, prior)
        own: Own = {}
        names = np.unique(told.software)
        if len(names) > 1 and self.rule != "published":
            for name in names.tolist():
                own[name] = self._weigh_alike(told.take(told.software == name), prior, (w, s))
        return w, s, own

    def _weigh_alike(
        self,
        told: "_Told",
        prior: np.ndarray,
        of_all: tuple[np.ndarray, np.ndarray] | None = None,
        start: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(w, s): weights, and usual errors estimated from held-out rows and the members' stated errors. The large
        `prior` error of learned members keeps their weight small until measurements support them. `of_all`: the global
        (w, s) towards which the weights shrink; `start`: other weights to shrink towards."""
        y, L, E = told.y, told.L, told.E
        claimed = np.array([np.nanmedian(e) if np.isfinite(e).any() else p for e, p in zip(E.T, prior, strict=True)])
        usual = weighing.usual_errors(y, L, claimed if of_all is None else of_all[1])
        if self.rule == "published":
            return weighing.published(y, L), usual
        w = np.zeros(len(prior))
        errors = weighing.usual_errors(y, L, prior)
        if of_all is not None:
            able = of_all[0] > 0  # a member without global weight gets none here
            start = of_all[0][able]
            w[able] = weighing.stacked(y, L[:, able], errors[able], told.jobs, start, _ALL) if able.any() else 0.0
            return w, usual
        able = np.isfinite(L).any(0)
        if not able.any():  # at most one row: no cross-validation
            able = prior < _LEARNED
        if able.any():
            w[able] = weighing.stacked(y, L[:, able], errors[able], told.jobs, None if start is None else start[able])
        return w, usual

    def _of_other_origins(self, columns: Columns, values: np.ndarray, y: np.ndarray) -> "_Told | None":
        """Out-of-fold predictions that hold out whole origins (frameworks, or one framework's devices); None for a
        single origin."""
        self._origin_of = family_of if len(np.unique(family_of(columns))) > 1 else software_of
        origin = np.broadcast_to(self._origin_of(columns), len(y))
        self._origins, which = np.unique(origin, return_inverse=True)
        if len(self._origins) < _GROUPS or self._wanted == "published":
            return None
        L, E = self._out_of_fold(columns, values, _folds(len(y), origin))
        return _Told(y, L, E, np.full(len(y), _ELSEWHERE), which)

    def _weigh_elsewhere(self, told: "_Told", prior: np.ndarray) -> None:
        as_it_is = np.array([float(getattr(member, "as_it_is", False)) for member in self.members])
        start = as_it_is / as_it_is.sum() if as_it_is.any() else None
        w, s = self._weigh_alike(told, prior, start=start)
        self._own[_ELSEWHERE] = w, np.maximum(s, prior.min())  # at least the smallest stated error
        mean, spread = self._combined(self._w, self._s, self._own, *told.asked(np.arange(len(told.y))))
        self._stretch_elsewhere = weighing.stretch_of_wholes(told.y, mean, spread, told.jobs)

    # ---- predicting --------------------------------------------------------------------------------------

    def _ask(self, columns: Columns, who: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[Prediction]]:
        n, columns = length(columns), dict(columns)
        L, E = np.full((n, len(who)), np.nan), np.full((n, len(who)), np.nan)
        said = []
        for i, member in enumerate(self.members):
            if who[i]:
                prediction = member.predict(columns) if not member.applies(columns) else _nothing(n)
                with np.errstate(invalid="ignore", divide="ignore"):
                    L[:, i], E[:, i] = np.log(prediction.value), prediction.error
                said.append(prediction)
        return L, E, said

    def _software(self, columns: Columns, n: int) -> np.ndarray:
        """(n,) hash of each row's framework and device; _ELSEWHERE if no fitted row has its origin."""
        software = np.broadcast_to(software_of(columns), n)
        if _ELSEWHERE not in self._own:
            return software
        return np.where(np.isin(self._origin_of(columns), self._origins), software, _ELSEWHERE)

    def _stretched(self, spread: np.ndarray, software: np.ndarray) -> np.ndarray:
        return spread * np.where(software == _ELSEWHERE, self._stretch_elsewhere, self._stretch)

    def _combined(
        self, w: np.ndarray, s: np.ndarray, own: Own, software: np.ndarray, L: np.ndarray, E: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        w, s = _of_rows(w, s, own, software)
        return weighing.combine(self._row_weights(w, s, L, E), s, L, E, log=self.rule != "published")

    def _row_weights(self, w: np.ndarray, s: np.ndarray, L: np.ndarray, E: np.ndarray) -> np.ndarray:
        if self.rule != "published":
            rows = weighing.on_rows(w, s, L, E) if w.any() else np.zeros_like(L)
            # Where no member keeps weight, the analytic members predict, with the wide intervals that they state.
            nobody = rows.sum(1, keepdims=True) == 0
            physics = np.where(np.isfinite(L) & [not hasattr(m, "min_rows") for m in self.members], 1 / E**2, 0.0)
            alone = physics / np.maximum(physics.sum(1, keepdims=True), 1e-300)
            return np.where(nobody, alone, rows)
        said = np.where(np.isfinite(L), w, 0.0)  # equation 2 uses the same weights for all rows
        total = said.sum(1, keepdims=True)
        return np.divide(said, total, out=np.zeros_like(said), where=total > 0)

    def _why(self, member: Member, columns: Columns, i: int, doubts: bool) -> str:
        if why := member.applies(columns):
            return why
        if doubts and (outside := getattr(member, "why_outside", lambda _: "")(columns)):
            return f"outside the range it was fitted on: {outside}"
        if self._w[i] == 0:
            error = self.mape.get(member.name)
            return (
                f"its error on held-out rows is {error:.0%}; other models err less"
                if error is not None
                else "no held-out row tests this model"
            )
        return ""


class _Told(NamedTuple):
    """Out-of-fold predictions in the notation of weighing.py. `software`: (n,) hash of each row's framework and device;
    `jobs`: (n,) rows with the same number have correlated errors."""

    y: np.ndarray
    L: np.ndarray
    E: np.ndarray
    software: np.ndarray
    jobs: np.ndarray

    def take(self, rows: np.ndarray) -> "_Told":
        return _Told(*(each[rows] for each in self))

    def asked(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.software[rows], self.L[rows], self.E[rows]


def _of_rows(w: np.ndarray, s: np.ndarray, own: Own, software: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(weights, usual errors): (n, m) by row, or (m,) if they are the same for all rows."""
    if not own:
        return w, s
    ws, ss = np.tile(w, (len(software), 1)), np.tile(s, (len(software), 1))
    for name, (weight, usual) in own.items():
        ws[software == name], ss[software == name] = weight, usual
    return ws, ss


def _unless_failed(mean: np.ndarray, L: np.ndarray) -> np.ndarray:
    """(n,) predicted values; inf where a member with weight predicts that a row cannot run."""
    return np.where(np.isinf(L).any(1), np.inf, np.exp(mean))


def _folds(n: int, groups: np.ndarray | None) -> np.ndarray:
    """(n,) each row's fold, assigned round-robin instead of at random, so that the weights are reproducible."""
    if groups is not None and len(names := np.unique(groups)) >= _GROUPS:
        return np.searchsorted(names, groups) % min(len(names), _FOLDS)
    count = n if n < _FEW else _FOLDS if n < _MANY else 3
    return np.arange(n) % max(count, 1)


def _mape(y: np.ndarray, mean: np.ndarray) -> float | None:
    miss = mean - y
    known = np.isfinite(miss)
    return float(np.abs(np.expm1(miss[known])).mean()) if known.any() else None


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _nothing(n: int) -> Prediction:
    return Prediction(value=np.full(n, np.nan), error=np.full(n, np.nan))
