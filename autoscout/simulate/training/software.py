"""Rows that do not say which software they ran, or how it was set up: they are predicted as a mixture over the training
engines' records, which measured rows of the job narrow down.

share of a member = its record's prior × the chance that its runs look like the row (`likely`); weight of a member =
share × the likelihood of the job's measurements (`evidence`)

A member is a record's release and, if the record leaves something open (gradients in 16 or 32 bits), one combination of
the alternatives. It fills the columns that a row leaves empty; stated values hold in every member. Its groups may be
conditional: `when` gives ranges or names of columns for which the group holds.

`settled` evaluates every condition once and writes the results into the column `software`, so functions that see only
some of the columns still know them.
"""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from autoscout.job.device_names import capability_of
from autoscout.simulate.combinations import Combinations
from autoscout.simulate.engine_records import PROVENANCE, Family, families
from autoscout.simulate.member import Columns
from autoscout.simulate.training.fleet import devices
from autoscout.simulate.training.inputs import CODED, by_precision, complete

Array = np.ndarray
UNKNOWN = "unknown"
TELLING = 3.0  # a job's evidence counts as at most this many rows, since their errors are correlated
KNOWN = -1  # code of rows that state everything that software decides
_BITS = 40  # bits of conditions in a settled code; the number of the row's family is above them
When = tuple[tuple[str, tuple[Any, ...]], ...]  # column → its allowed values: (least, most), or one of these names
_SHAPED = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "seq_len", "ffn", "params", "vocab", "experts", "expert_ffn",
    "fp8", "fsdp", "gpu", "dtype", "dtype_bytes", "software",
)  # fmt: skip  # what the columns of a condition are completed from


class SoftwareMember(NamedTuple):
    """`since`: the record's release; `share`: prior probability for runs that name no software; `named`: for runs that
    name the record or its base. `slower`, `unseen`: mean and standard deviation of log(measured / predicted) of runs
    without a record. `filled`: columns set where a condition holds; the first that sets a column wins; `chances`:
    factors on the share where a condition holds."""

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
    """One member: the log of its (n,) probabilities, -inf where it is impossible, `slower` and `unseen` (n,), and the
    completed rows."""

    name: str
    log_share: Array
    columns: Columns
    slower: Array
    unseen: Array


@cache
def members() -> tuple[SoftwareMember, ...]:
    """The members of every record that has a prior for unnamed runs."""
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
    """The condition of a record's group; without one it always holds."""
    return tuple((name, tuple(limits)) for name, limits in group.get("when", {}).items())


def _figures(group: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in group.items() if k not in (*PROVENANCE, "when", "of", "choice", "share", "chances")}


def holds(when: When, value: Callable[[str], Array]) -> Array:
    """(n,) whether all columns of a condition are within their range, or have one of its names."""
    found = np.ones(1, dtype=bool)
    for name, limits in when:
        given = value(name)
        some = isinstance(limits[0], str)
        found = found & (np.isin(given, limits) if some else (given >= limits[0]) & (given <= limits[1]))
    return found


@cache
def _conditions() -> tuple[When, ...]:
    """All conditions, each once; the bits of a settled code are in this order."""
    every = {when: None for m in members() for when, _ in (*m.filled, *m.chances) if when}
    if len(every) > _BITS:
        raise ValueError(f"{len(every)} conditions in records of trainers; at most {_BITS} are possible")
    return tuple(every)


@cache
def nameable() -> tuple[str, ...]:
    """The values that a row's `software` may have: a record, by the name of its file, or one of its releases."""
    releases = (f"{member.stem} {member.since}" for member in members())
    return tuple(dict.fromkeys((*families(), *releases)))


def settled(columns: Columns, device: str = "") -> Columns:
    """The columns, with a number in `software`: KNOWN, or the bits of the conditions that hold for the row and the
    number of the record that it names. `device`: for rows that name none."""
    said = np.atleast_1d(np.asarray(columns.get("software", "")))
    if said.dtype.kind != "U":
        return columns
    if not np.any(said != ""):
        return {name: value for name, value in columns.items() if name != "software"}
    asked = sorted({name for when in _conditions() for name, _ in when} | {*_SHAPED} - {"capability"})
    few, of = Combinations(columns, asked).of()
    n = int(of.max()) + 1
    bits = np.zeros(n, dtype=np.int64)
    for rows, some in by_precision(few):
        x = complete(some)
        own = {"dtype": np.array([x.dtype]), "capability": _capabilities(some, device)}
        for bit, when in enumerate(_conditions()):
            held = holds(when, lambda name, own=own, x=x, some=some: own[name] if name in own else _read(x, some, name))
            bits[rows] |= np.where(held, 1 << bit, 0)
    names = np.broadcast_to(np.asarray(few["software"], dtype=str), n)
    numbered = {"": KNOWN, UNKNOWN: 0} | {name: i + 1 for i, name in enumerate(nameable())}
    which = np.array([numbered[name] for name in names.tolist()])
    codes = np.where(which == KNOWN, KNOWN, bits | np.maximum(which, 0) << _BITS)
    return {**columns, "software": codes[of] if len(of) > 1 else int(codes[0])}


def _read(x: Any, columns: Columns, name: str) -> Array:
    """A column as the models complete it; columns that only records read stay as they are."""
    return getattr(x, name) if hasattr(x, name) else np.asarray(columns.get(name, np.nan), dtype=float)


def _capabilities(columns: Columns, device: str) -> Array:
    names = np.atleast_1d(np.asarray(columns["gpu"], dtype=str)) if "gpu" in columns else devices(columns, device)
    each = {name: capability_of(name) for name in {*names}}
    return np.array([each[name] for name in names]) if "gpu" in columns else np.array([min(each.values())])


@cache
def _likely(code: int) -> dict[str, tuple[SoftwareMember, float, dict[str, Any]]]:
    """By record and name: the members that a row of this code may be, the log of their share, and the columns that they
    fill."""
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
    """One variant per possible member; if every row states its software, a single variant with the columns as they are.
    `blind_to`: columns that the caller ignores; members that differ only in these are merged."""
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
        # An impossible member has no weight; it fills the same columns, to keep all rows alike.
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
    """Several members merged for rows of one code; `share` is a logarithm, -inf where impossible."""

    share: float
    slower: float
    unseen: float
    filled: dict[str, Any]


def _together(some: dict[str, tuple[SoftwareMember, float, dict[str, Any]]], names: list[str]) -> _Merged:
    """Merges members that do not differ in a relevant column."""
    here = [some[name] for name in names if name in some]
    if not here:
        return _Merged(-np.inf, 0.0, 0.0, {})
    share = float(np.logaddexp.reduce([log for _, log, _ in here]))
    return _Merged(share, here[0][0].slower, here[0][0].unseen, here[0][2])


def _filled(given: Any, values: list[Any], kind: Array, name: str) -> Any:
    """The row's value, or the member's where the row has none (None: the member sets nothing)."""
    said = None if given is None else np.asarray(given)
    if all(value == values[0] for value in values):  # equal for all rows: stays a scalar
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
    """Values that all rows share become scalars, which fit any number of rows."""
    return values.item() if values.size == 1 else values


def side_by_side(some: list[Variant]) -> dict[str, Any]:
    """The columns of all variants: (members, n) where they differ."""
    found: dict[str, Any] = {}
    for name in {name: None for variant in some for name in variant.columns}:
        empty = "" if any(np.asarray(v.columns.get(name, 0.0)).dtype.kind == "U" for v in some) else np.nan
        each = [variant.columns.get(name, empty) for variant in some]
        alike = all(one is each[0] for one in each)
        found[name] = each[0] if alike else np.stack(np.broadcast_arrays(*map(np.atleast_1d, each)))
    return found


def stacked(some: list[Variant], n: int) -> dict[str, Any]:
    """The (n,) rows of all variants, one after the other, so that one call predicts them all."""
    return {
        name: value if np.ndim(value) == 0 or name == "degrees" else np.broadcast_to(value, (len(some), n)).reshape(-1)
        for name, value in side_by_side(some).items()
    }


def evidence(found: list[Variant], residuals: list[Array], spread: float) -> dict[str, float]:
    """Log likelihood of each member, from log(measured / predicted) of the (n,) rows that do not state their software;
    NaN where a row gives none. Errors of a job's rows are correlated, so together they count as at most TELLING
    rows."""
    told: dict[str, float] = {}
    for variant, residual in zip(found, residuals, strict=True):
        seen = np.isfinite(residual) & np.broadcast_to(np.isfinite(variant.log_share), len(residual))
        weight = min(1.0, TELLING / max(int(seen.sum()), 1))
        told[variant.name] = float(-0.5 * weight * np.square(residual[seen] / spread).sum())
    return told


def probabilities(log_share: list[Array], n: int) -> Array:
    """(members, n) probabilities, which sum to 1 over the members."""
    weights = np.array([np.broadcast_to(s, n) for s in log_share])
    weights = np.exp(weights - weights.max(axis=0))
    return weights / weights.sum(axis=0)


def expected(weights: Array, values: list[Array]) -> Array:
    """(n,) mean of the members' predictions."""
    return sum((weight * value for weight, value in zip(weights, values, strict=True)), np.zeros(weights.shape[1]))


def mixed(values: list[Array], log_share: list[Array]) -> tuple[Array, Array, Array]:
    """(geometric mean, standard deviation of the logarithm between members, (members, n) probabilities)."""
    n = max(len(v) for v in (*values, *log_share))
    weights = probabilities(log_share, n)
    return *middle(np.array([np.broadcast_to(v, n) for v in values]), weights), weights


def middle(values: Array, weights: Array) -> tuple[Array, Array]:
    """The geometric mean over members of (members, n) values, and the standard deviation of their logarithms."""
    logs = np.where(weights > 0, np.log(values), 0.0)
    mean = (weights * logs).sum(axis=0)
    between = (weights * (logs - mean) ** 2).sum(axis=0)
    return np.exp(mean), np.sqrt(between)


class Unsaid(NamedTuple):
    """A column that was not stated: for each of its possible values the geometric mean of the predictions, and the
    standard deviation of the logarithms of these means."""

    column: str
    values: dict[str, float]
    between: float


def widest(some: list[Variant], values: Array, weights: Array) -> Unsaid | None:
    """For one row, the unstated column whose value matters most for the prediction. `values`, `weights`: (members,)
    predictions and probabilities."""
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
