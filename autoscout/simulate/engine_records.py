"""Engine records: a TOML file per engine family (vLLM, …), in fixtures/engines or next to the knowledge base.

A record lists the names under which tables and launch lines mention the engine, and one row per release whose behaviour
changed. A row contains groups of figures. Each group has a `source`, the number `n` of measurements behind it (0: read
in the engine's code, or assumed), and optionally the command that fits it again. Groups that a row omits are inherited
from the previous row; the first row inherits from the release of another family that its key `like` names. A user's
record replaces the shipped record with the same file name."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job import shipped
from autoscout.job.words import nearest_name
from kb.records import AutoscoutError
from kb.store import default_path

Version = tuple[int, ...]
Groups = dict[str, dict[str, Any]]  # group name → its figures
_FAMILY = (
    "name",
    "task",
    "names",
    "undated",
    "read_until",
    "batches_like",
    "unpriced",
    "stands_for",
    "runs_on",
    "release",
)
_ABOUT = ("since", "like", "recent")  # keys of a release row that are not groups
PROVENANCE = ("source", "n", "fitted_by")  # keys of a group that are not figures; `fitted_by` is optional
NEWEST: Version = (1 << 30,)  # later than any release


class ReleaseRow(msgspec.Struct, frozen=True):
    """Figures that apply from the release `since` up to the next row. `groups`: all groups, including inherited ones.
    `recent`: how many releases of this span appeared in the last two years; 0 if not counted."""

    since: Version
    groups: Groups
    recent: float = 0.0


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """An engine with its release rows, oldest first. `undated`: the release assumed for published fixed-batch results
    that state no release. `read_until`: the latest release whose benchmark results or source code the record takes into
    account. `batches_like`: "" or the family and release whose scheduling rules apply to fixed batches (offline
    inference). `unpriced`: "" or the reason why its runs cannot be predicted. `stands_for`: "" or the runs for which it
    is the fallback: "unnamed" (no framework stated), "undescribed" (framework without a record) or "submitted" (to a
    benchmark such as MLPerf). `runs_on`: "" or the record (file name) of the framework on which this one is built; a
    run may name either."""

    stem: str
    name: str
    task: str
    names: tuple[str, ...]
    undated: str
    read_until: Version
    batches_like: str
    unpriced: str
    stands_for: str
    runs_on: str
    rows: tuple[ReleaseRow, ...]

    def at(self, version: Version) -> ReleaseRow:
        """The row that applies to a release; for a release older than all rows, the first row."""
        return next((row for row in reversed(self.rows) if row.since <= version), self.rows[0])


def folder() -> Path:
    return shipped.folder() / "engines"


def own_folder() -> Path:
    """The folder of a user's records, next to the knowledge base."""
    return default_path().parent / "engines"


@cache
def families() -> dict[str, Family]:
    """All engine records, by file name without the suffix.

    Errors: AutoscoutError (exit 2) for an invalid file, and if two records list the same engine name."""
    paths = {path.stem: path for here in (folder(), own_folder()) for path in sorted(here.glob("*.toml"))}
    files = {stem: _read(path) for stem, path in paths.items()}
    found: dict[str, Family] = {}

    def family(stem: str, asking: tuple[str, ...]) -> Family:
        if stem not in found:
            found[stem] = _family(stem, files[stem], paths[stem], lambda like: lent(stem, like, (*asking, stem)))
        return found[stem]

    def lent(stem: str, like: str, asking: tuple[str, ...]) -> Groups:
        other, _, release = like.partition(" ")
        if other in asking:
            raise AutoscoutError(f"{paths[stem]}: its `like` refers back to itself: {' → '.join((*asking, other))}", 2)
        if other not in files:
            raise AutoscoutError(f"{paths[stem]}: like = '{like}'{nearest_name(other, files)}", 2)
        return family(other, asking).at(release_of(release) or NEWEST).groups

    for stem in files:
        family(stem, ())
    _named_once(found, paths)
    return found


def family_of(text: str, task: str) -> Family | None:
    """The family whose name occurs in the text, in any spelling; None if there is none. If several names occur, the
    longest wins ("NeMo AutoModel" is not NeMo)."""
    said = _words(text)
    found = [
        (len(name), family) for family in families().values() if family.task == task for name in family.names
        if f" {name} " in said
    ]  # fmt: skip
    return max(found, key=lambda pair: pair[0])[1] if found else None


def standing_for(what: str, task: str) -> Family:
    """The fallback family for runs of the class `what` (see `Family.stands_for`)."""
    return next(family for family in families().values() if (family.stands_for, family.task) == (what, task))


def release_of(text: str) -> Version | None:
    """The first version number in a text, as a tuple: (0, 14, 1) for "v0.14.1"; None without a number ("nightly")."""
    found = re.search(r"(?<![\w.])v?(\d+(?:\.\d+)+|\d+(?![\w]))", text)
    return tuple(int(part) for part in found[1].split(".")) if found else None


def _words(text: str) -> str:
    """Lower case, with words separated, so that TensorRT-LLM, TensorRT_LLM and tensorrt llm are equal."""
    return f" {re.sub(r'[^a-z0-9]+', ' ', text.lower()).strip()} "


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise AutoscoutError(f"{path}: {e}", 2) from None


def _family(stem: str, content: Mapping[str, Any], path: Path, lent: Any) -> Family:
    if strange := next((key for key in content if key not in _FAMILY), ""):
        raise AutoscoutError(f"{path}: {strange}{nearest_name(strange, _FAMILY)}", 2)
    if not content.get("release") or content.get("task") not in ("serve", "train"):
        raise AutoscoutError(f"{path}: an engine's record needs task = 'serve' or 'train', and a [[release]]", 2)
    rows: list[ReleaseRow] = []
    for number, stated in enumerate(content["release"]):
        since = release_of(str(stated.get("since", "")))
        if since is None or (rows and since <= rows[-1].since):
            raise AutoscoutError(
                f"{path}: release {number + 1}: `since` must be later than that of the previous release", 2
            )
        like = str(stated.get("like", ""))
        if like and rows:
            raise AutoscoutError(f"{path}: only the first release may be `like` a release of another family", 2)
        before = rows[-1].groups if rows else lent(like) if like else {}
        groups = {key: value for key, value in stated.items() if key not in _ABOUT}
        for name, group in groups.items():
            if not isinstance(group, dict) or any(key not in group for key in PROVENANCE[:2]):
                raise AutoscoutError(f"{path}: release since {stated['since']}: [{name}] needs `source` and `n`", 2)
        rows.append(ReleaseRow(since, {**before, **groups}, float(stated.get("recent", 0))))
    return Family(
        stem=stem,
        name=str(content.get("name", stem)),
        task=content["task"],
        names=tuple(_words(name).strip() for name in content.get("names", [])),
        undated=str(content.get("undated", "")),
        read_until=release_of(str(content.get("read_until", ""))) or NEWEST,
        batches_like=str(content.get("batches_like", "")),
        unpriced=str(content.get("unpriced", "")),
        stands_for=str(content.get("stands_for", "")),
        runs_on=str(content.get("runs_on", "")),
        rows=tuple(rows),
    )


def _named_once(found: Mapping[str, Family], paths: Mapping[str, Path]) -> None:
    owners: dict[tuple[str, str], str] = {}
    for stem, family in found.items():
        for name in family.names:
            if (other := owners.setdefault((family.task, name), stem)) != stem:
                raise AutoscoutError(
                    f"{paths[stem]}: '{name}' is also a name in {paths[other]}; remove it from one of the two files", 2
                )
