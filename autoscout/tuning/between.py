"""Lists the versions between a good and a bad one, in order, for a bisection."""

import contextlib
import difflib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from autoscout.tuning.sides import commit_words, commits
from kb.records import AutoscoutError, Job


class BisectPoint(msgspec.Struct, frozen=True):
    """A version of the job. `label`: its change from the previous version; `side`: its definition (sides.py)."""

    label: str
    side: str


@contextlib.contextmanager
def points_between(good: str, bad: str, job: Job, versions: Sequence[str]) -> Iterator[list[BisectPoint]]:
    """The versions from the good to the bad one, both included. Errors: AutoscoutError (exit 2)."""
    package, equals, _ = good.partition("==")
    if equals and bad.startswith(f"{package}=="):
        wanted = [good, *(v if "==" in v else f"{package}=={v}" for v in versions), bad]
        yield [BisectPoint(each, each) for each in dict.fromkeys(wanted)]
    elif Path(good).is_file() and Path(bad).is_file():
        with tempfile.TemporaryDirectory(prefix="autoscout-settings-") as folder:
            yield _settings(Path(good), Path(bad), Path(folder))
    elif versions:
        raise AutoscoutError(
            "--versions needs package versions as GOOD and BAD, such as torch==2.12.0 and torch==2.13.0", 2
        )
    else:
        yield [BisectPoint(commit_words(job, each), f"commit={each}") for each in commits(job, good, bad)]


def _settings(old: Path, new: Path, folder: Path) -> list[BisectPoint]:
    """Versions of a settings file: the old file, then files with one more changed block each, up to the new file."""
    before, after = old.read_text().splitlines(), new.read_text().splitlines()
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = [block for block in blocks if block[0] != "equal"]
    if not changed:
        raise AutoscoutError(f"{old} and {new} have the same lines; give two files that differ", 2)
    found = []
    for count in range(len(changed) + 1):
        now = set(itertools.islice(changed, count))
        lines = [
            line
            for block in blocks
            for line in (after[block[3] : block[4]] if block in now else before[block[1] : block[2]])
        ]
        made = folder / str(count) / new.name
        made.parent.mkdir()
        made.write_text("\n".join(lines) + "\n")
        label = old.name if not count else _words(before, after, changed[count - 1])
        found.append(BisectPoint(label, f"file={new}:{made}"))
    return found


def _words(before: list[str], after: list[str], block: tuple[str, int, int, int, int]) -> str:
    _, i, j, k, m = block
    minus, plus = " ".join(line.strip() for line in before[i:j]), " ".join(line.strip() for line in after[k:m])
    return f"line {k + 1}: " + " → ".join([minus or "(nothing)", plus or "(nothing)"])
