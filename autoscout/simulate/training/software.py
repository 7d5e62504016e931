"""Predicts rows that do not state their software or its settings, as a mixture over software profiles from the training
engines' records. Measurements of the job update the profiles' weights.

share of a profile = prior of its record × probability that its runs look like the row; weight of a profile = share ×
likelihood of the job's measurements (`evidence`)

A software profile (member of the mixture) is one release of a record and, if the record has alternatives (such as
gradients in 16 or 32 bits), one combination of them. It fills the columns that a row leaves empty; stated values always
apply. A record's group may have a condition `when`: ranges or names that columns must have for the group to apply.

`settled` evaluates all conditions once and stores the results as bits in the column `software`, so that they remain
known to functions that get only some of the columns."""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from autoscout.job.device_names import DEVICE_FIGURES
from autoscout.simulate.combinations import Combinations
from autoscout.simulate.engine_records import PROVENANCE, Family, families
from autoscout.simulate.member import Columns
from autoscout.simulate.training.fleet import devices
from autoscout.simulate.training.inputs import CODED, by_precision, complete

Array = np.ndarray
UNKNOWN = "unknown"
TELLING = 3.0  # a job's rows together count as at most this many independent rows, as their errors correlate; assumed
KNOWN = -1  # code of rows with an empty `software`, whose columns state all that software determines
_BITS = 44  # a code of `settled` has this many bits for conditions; its higher bits number the record that a row names
When = tuple[tuple[str, tuple[Any, ...]], ...]  # a condition: pairs of a column and its range or allowed names
_SHAPED = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "seq_len", "ffn", "params", "vocab", "experts", "expert_ffn",
    "fp8", "fsdp", "gpu", "dtype", "dtype_bytes", "software",
)  # fmt: skip # columns from which the columns in conditions are computed


class SoftwareMember(NamedTuple):
    """A software profile. `stem`, `since`: its record and release; `share`: prior probability for runs of unknown
    software; `named`: prior probability for runs that name the record or the framework it is built on. `slower`,
    `unseen`: mean and standard deviation of log(measured / predicted), nonzero for the profile of undocumented
    software. `filled`: (condition, column → value) …; for each column, the first entry whose condition holds applies;
    `chances`: (condition, factor on the share)."""

    name: str
    stem: str
    since: str
    runs_on: str
    share: float
    named: float
    slower: float
    unseen: float
    filled: tuple[tuple[When, dict[str, Any]], ...]
    chances: tuple[tuple[When, float], ...]


class Variant(NamedTuple):
    """The rows as one software profile completes them. `log_share`: (n,) log prior probability, -inf where the profile
    is impossible; `slower`, `unseen`: (n,) as in SoftwareMember."""

    name: str
    log_share: Array
    columns: Columns
    slower: Array
    unseen: Array


@cache
def members() -> tuple[SoftwareMember, ...]:
    """The software profiles of all training records that state a prior probability (in the group `unsaid`)."""
    return tuple(member for family in families().values() if family.task == "train" for member in _members(family))


def _members(family: Family) -> list[SoftwareMember]:
    found = []
    for row in family.rows:
        about = row.groups.get("unsaid")
        if about is None:
            continue
        choices: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        fixed = []
        for name, group in row.groups.items():
            if "of" in group:
                choices.setdefault(group["of"], []).append((str(group["choice"]), group))
            elif name == "columns" or "when" in group:
                fixed.append(group)
        since = ".".join(map(str, row.since))
        release = f" {since}" if len(family.rows) > 1 else ""
        for picked in product(*choices.values()):
            groups = [group for _, group in picked]
            share = float(np.prod([group["share"] for group in groups]))
            found.append(
                SoftwareMember(
                    (", ".join(name for name, _ in picked) or family.name) + release,
                    family.stem,
                    since,
                    family.runs_on,
                    about["share"] * share,
                    about.get("named", about["share"]) * share,
                    float(about.get("slower", 0.0)),
                    float(about.get("unseen", 0.0)),
                    tuple((when_of(group), _figures(group)) for group in reversed([*fixed, *groups])),
                    tuple(
                        (when_of(one), float(one["chance"]))
                        for group in (about, *groups)
                        for one in group.get("chances", [])
                    ),
                )
            )
    return found


def when_of(group: Mapping[str, Any]) -> When:
    """The condition of a record's group; empty, and always true, if it has none."""
    return tuple((name, tuple(limits)) for name, limits in group.get("when", {}).items())


def _figures(group: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in group.items() if k not in (*PROVENANCE, "when", "of", "choice", "share", "chances")}


def holds(when: When, value: Callable[[str], Array]) -> Array:
    """(n,) whether a condition is true: every column is within its range or has a listed name. `value`: returns a
    column."""
    found = np.ones(1, dtype=bool)
    for name, limits in when:
        given = value(name)
        some = isinstance(limits[0], str)
        found = found & (np.isin(given, limits) if some else (given >= limits[0]) & (given <= limits[1]))
    return found


@cache
def _conditions() -> tuple[When, ...]:
    """All distinct conditions, in the order of their bits in a code of `settled`."""
    every = {when: None for m in members() for when, _ in (*m.filled, *m.chances) if when}
    if len(every) > _BITS:
        raise ValueError(f"{len(every)} conditions in records of trainers; at most {_BITS} are possible")
    return tuple(every)


@cache
def nameable() -> tuple[str, ...]:
    """Valid values of the column `software`: file names of records, alone or with a release ("huggingface 5")."""
    releases = (f"{member.stem} {member.since}" for member in members())
    return tuple(dict.fromkeys((*families(), *releases)))


def settled(columns: Columns, device: str = "") -> Columns:
    """The columns with `software` replaced by a code: KNOWN, or the bits of the conditions that are true for the row
    and the number of the record that the row names. `device`: the default of rows that name none."""
    said = np.atleast_1d(np.asarray(columns.get("software", "")))
    if said.dtype.kind != "U":
        return columns
    if not np.any(said != ""):
        return {name: value for name, value in columns.items() if name != "software"}
    asked = sorted({name for when in _conditions() for name, _ in when} | {*_SHAPED} - {*DEVICE_FIGURES})
    few, of = Combinations(columns, asked).of()
    n = int(of.max()) + 1
    bits = np.zeros(n, dtype=np.int64)
    for rows, some in by_precision(few):
        x = complete(some)
        own = {"dtype": np.array([x.dtype])}
        own |= {name: _of_devices(name, some, device) for name in DEVICE_FIGURES}
        for bit, when in enumerate(_conditions()):
            held = holds(when, lambda name, own=own, x=x, some=some: own[name] if name in own else _read(x, some, name))
            bits[rows] |= np.where(held, 1 << bit, 0)
    names = np.broadcast_to(np.asarray(few["software"], dtype=str), n)
    numbered = {"": KNOWN, UNKNOWN: 0} | {name: i + 1 for i, name in enumerate(nameable())}
    which = np.array([numbered[name] for name in names.tolist()])
    codes = np.where(which == KNOWN, KNOWN, bits | np.maximum(which, 0) << _BITS)
    return {**columns, "software": codes[of] if len(of) > 1 else int(codes[0])}


def _read(x: Any, columns: Columns, name: str) -> Array:
    """A column: from `x` (with defaults); from `columns` if only conditions of records use it (not in `x`)."""
    return getattr(x, name) if hasattr(x, name) else np.asarray(columns.get(name, np.nan), dtype=float)


def _of_devices(figure: str, columns: Columns, device: str) -> Array:
    names = np.atleast_1d(np.asarray(columns["gpu"], dtype=str)) if "gpu" in columns else devices(columns, device)
    each = {name: DEVICE_FIGURES[figure](name) for name in {*names}}
    return np.array([each[name] for name in names]) if "gpu" in columns else np.array([min(each.values())])


@cache
def _likely(code: int) -> dict[str, tuple[SoftwareMember, float, dict[str, Any]]]:
    """The profiles possible for rows whose `software` is this code: name → (profile, log share, filled columns)."""
    stem, _, since = (nameable()[(code >> _BITS) - 1] if code >> _BITS else "").partition(" ")
    true = {when for bit, when in enumerate(_conditions()) if code >> bit & 1} | {()}
    found = {}
    for member in members():
        share = member.named if stem else member.share
        for when, chance in member.chances:
            share *= chance if when in true else 1.0
        if share > 0 and (not stem or stem in (member.stem, member.runs_on)) and since in ("", member.since):
            filled: dict[str, Any] = {}
            for when, columns in member.filled:
                filled |= {name: value for name, value in columns.items() if when in true and name not in filled}
            found[f"{member.stem}: {member.name}"] = (member, float(np.log(share)), filled)
    return found


def variants(columns: Columns, blind_to: frozenset[str] = frozenset(), device: str = "") -> list[Variant]:
    """The rows as completed by each possible software profile; a single variant with unchanged columns if all rows are
    KNOWN. `blind_to`: columns that the caller ignores, so profiles that differ only in these are merged."""
    columns = settled(columns, device)
    codes = np.atleast_1d(np.asarray(columns.get("software", KNOWN))).astype(np.int64)
    each, kind = np.unique(codes, return_inverse=True)
    likely = [_likely(code) if code != KNOWN else {} for code in each.tolist()]
    if not any(likely):
        return [Variant("", np.zeros(1), columns, np.zeros(1), np.zeros(1))]
    merged: dict[Any, list[str]] = {}
    for name in {name: None for some in likely for name in some}:
        what = [some[name][2] if name in some else None for some in likely]
        key = tuple(_shown(one, blind_to) for one in what)
        merged.setdefault(key, []).append(name)
    found: list[Variant] = []
    for names in merged.values():
        of = [_together(some, names) for some in likely]
        share = [0.0 if not some and not found else one.share for some, one in zip(likely, of, strict=True)]
        usual = next(one.filled for one in of if one.share > -np.inf)
        # Where a profile is impossible, its values do not matter, but all rows need the same columns.
        fills = [one.filled if one.share > -np.inf or not some else usual for some, one in zip(likely, of, strict=True)]
        own = sorted({name for one in fills for name in one if name not in blind_to})
        filled = {name: _filled(columns.get(name), [one.get(name) for one in fills], kind, name) for name in own}
        rest = {name: value for name, value in columns.items() if name != "software"}
        figures = (np.array(each)[kind] for each in (share, [one.slower for one in of], [one.unseen for one in of]))
        share, slower, unseen = figures
        found.append(Variant(names[0], share, {**rest, **filled}, slower, unseen))
    return found


def _shown(filled: dict[str, Any] | None, blind_to: frozenset[str]) -> Any:
    return None if filled is None else tuple(sorted((k, v) for k, v in filled.items() if k not in blind_to))


class _Merged(NamedTuple):
    """Several software profiles, merged for rows of one code. `share`: log of the summed share, -inf if impossible."""

    share: float
    slower: float
    unseen: float
    filled: dict[str, Any]


def _together(some: dict[str, tuple[SoftwareMember, float, dict[str, Any]]], names: list[str]) -> _Merged:
    """Merges the profiles `names`, which do not differ in a relevant column."""
    here = [some[name] for name in names if name in some]
    if not here:
        return _Merged(-np.inf, 0.0, 0.0, {})
    share = float(np.logaddexp.reduce([log for _, log, _ in here]))
    return _Merged(share, here[0][0].slower, here[0][0].unseen, here[0][2])


def _filled(given: Any, values: list[Any], kind: Array, name: str) -> Any:
    """The `given` column, in which each empty entry i is filled by values[kind[i]] (None: left empty)."""
    said = None if given is None else np.asarray(given)
    if all(value == values[0] for value in values):  # all rows get the same value: return a scalar
        values, kind = values[:1], np.zeros(1, dtype=int)
    if any(isinstance(value, str) for value in values):
        if name not in CODED or (said is not None and said.dtype.kind == "U"):
            own = np.asarray("" if said is None else said, dtype=str)
            return _plain(np.where(own == "", np.array([value or "" for value in values])[kind], own))
        values = [None if value is None else CODED[name][value] for value in values]
    own = np.asarray(np.nan if said is None else said, dtype=float)
    put = np.array([np.nan if value is None else float(value) for value in values])[kind]
    return _plain(np.where(np.isnan(own), put, own))


def _plain(values: Array) -> Any:
    """Converts an array of one value to a scalar, which broadcasts to any number of rows."""
    return values.item() if values.size == 1 else values


def side_by_side(some: list[Variant]) -> dict[str, Any]:
    """The columns of all variants together: (variants, n) where they differ."""
    found: dict[str, Any] = {}
    for name in {name: None for variant in some for name in variant.columns}:
        empty = "" if any(np.asarray(v.columns.get(name, 0.0)).dtype.kind == "U" for v in some) else np.nan
        each = [variant.columns.get(name, empty) for variant in some]
        alike = all(one is each[0] for one in each)
        found[name] = each[0] if alike else np.stack(np.broadcast_arrays(*map(np.atleast_1d, each)))
    return found


def stacked(some: list[Variant], n: int) -> dict[str, Any]:
    """The (n,) rows of all variants concatenated, so that one call predicts them all."""
    return {
        name: value if np.ndim(value) == 0 or name == "degrees" else np.broadcast_to(value, (len(some), n)).reshape(-1)
        for name, value in side_by_side(some).items()
    }


def evidence(found: list[Variant], residuals: list[Array], spread: float) -> dict[str, float]:
    """Log likelihood of each variant. `residuals`: (n,) log(measured / predicted) under each variant, NaN for rows
    without a measurement; `spread`: standard deviation of a residual. A job's rows together count as at most TELLING
    rows."""
    told: dict[str, float] = {}
    for variant, residual in zip(found, residuals, strict=True):
        seen = np.isfinite(residual) & np.broadcast_to(np.isfinite(variant.log_share), len(residual))
        weight = min(1.0, TELLING / max(int(seen.sum()), 1))
        told[variant.name] = float(-0.5 * weight * np.square(residual[seen] / spread).sum())
    return told


def probabilities(log_share: list[Array], n: int) -> Array:
    """(variants, n) probabilities, which sum to 1 over the variants."""
    weights = np.array([np.broadcast_to(s, n) for s in log_share])
    weights = np.exp(weights - weights.max(axis=0))
    return weights / weights.sum(axis=0)


def expected(weights: Array, values: list[Array]) -> Array:
    return sum((weight * value for weight, value in zip(weights, values, strict=True)), np.zeros(weights.shape[1]))


def mixed(values: list[Array], log_share: list[Array]) -> tuple[Array, Array, Array]:
    """((n,) geometric mean over the variants, (n,) standard deviation of their logs, (variants, n) probabilities)."""
    n = max(len(v) for v in (*values, *log_share))
    weights = probabilities(log_share, n)
    return *middle(np.array([np.broadcast_to(v, n) for v in values]), weights), weights


def middle(values: Array, weights: Array) -> tuple[Array, Array]:
    """((n,) weighted geometric mean of (variants, n) values, (n,) standard deviation of their logs)."""
    logs = np.where(weights > 0, np.log(values), 0.0)
    mean = (weights * logs).sum(axis=0)
    between = (weights * (logs - mean) ** 2).sum(axis=0)
    return np.exp(mean), np.sqrt(between)


class Unsaid(NamedTuple):
    """A column that a row does not state. `values`: possible value → geometric mean of the predictions with it;
    `between`: standard deviation of the logs of these means."""

    column: str
    values: dict[str, float]
    between: float


def widest(some: list[Variant], values: Array, weights: Array) -> Unsaid | None:
    """The unstated column that affects a row's prediction most. `values`, `weights`: (variants,) predictions and
    probabilities."""
    logs, found = np.log(values), list[Unsaid]()
    for name in {name: None for variant in some for name in variant.columns}:
        each = [str(np.ravel(np.asarray(variant.columns.get(name, "")))[:1].tolist()) for variant in some]
        means = {}
        for value in dict.fromkeys(each):
            here = np.array([one == value for one in each])
            if (mass := weights[here].sum()) > 0:
                means[value] = mass, float((weights[here] * logs[here]).sum() / mass)
        middle = sum(mass * mean for mass, mean in means.values())
        between = float(np.sqrt(sum(mass * (mean - middle) ** 2 for mass, mean in means.values())))
        shown = {value.strip("[]'").removesuffix(".0"): float(np.exp(mean)) for value, (_, mean) in means.items()}
        found.append(Unsaid(name, shown, between))
    most = max(found, key=lambda one: one.between, default=None)
    return most if most is not None and most.between > 0 else None
