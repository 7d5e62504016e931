"""Writes docs/engines-and-releases.md from the recorded properties of engines' releases, and counts of their audits.

PYTHONPATH=. python tests/tools/releases_page.py                  # writes the page from the records
PYTHONPATH=. python tests/tools/releases_page.py AUDIT.json …     # records audits first (`targets --audit --json`)
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from autoscout.targets import audited, seams
from autoscout.targets.audited import Audit
from autoscout.targets.command import settings_taken
from autoscout.targets.megatron import engine_audit, engine_seams
from autoscout.targets.target import shipped
from autoscout.targets.vllm import config_audit, engine_calls

PAGE = Path("docs/engines-and-releases.md")
_MARK = "<!-- tables: PYTHONPATH=. python tests/tools/releases_page.py -->\n"


def record(found: list[Audit]) -> None:
    """Records only an audit's counts; flags without a knob, and changed fields, are in the engines' records."""
    held = audited.recorded() | {each.engine: msgspec.structs.replace(each, unset=[], moved={}) for each in found}
    written = msgspec.json.format(msgspec.json.encode(dict(sorted(held.items()))), indent=1)
    audited.RECORD.write_bytes(written + b"\n")
    audited.recorded.cache_clear()


def page(text: str) -> str:
    return text.partition(_MARK)[0] + _MARK + "\n" + "\n".join(_tables()) + "\n"


def _tables() -> Iterator[str]:
    yield from ("## What audits counted", "")
    yield "| engine | drawn | refused | changed | forbidden neighbours | of them accepted | that it should refuse |"
    yield "|---|---|---|---|---|---|---|"
    for name, each in sorted(audited.recorded().items(), key=lambda item: _order(item[0])):
        accepted = sum(each.accepted.values())
        yield (
            f"| {name} | {each.drawn} | {sum(each.refused.values())} | {len(each.changed)} | {each.forbidden} | "
            f"{accepted} | {each.unsaid} |"
        )
    yield from ("", "## What AutoScout calls or sets", "", "| engine | releases on record | names | that do not fit |")
    yield "|---|---|---|---|"
    yield _called("megatron-core", engine_seams.recorded(), engine_seams.used())
    yield _called("vllm", engine_calls.recorded(), engine_calls.used())
    for path in sorted(settings_taken.RECORDS.glob("*.json")):
        known = seams.read_record(path)
        yield f"| {path.stem} | {', '.join(known.releases)} | {len(known.names)} | none |"
    catalog = shipped("megatron")
    yield from ("", "## Knobs of Megatron-core that came, changed their default or their flag", "")
    yield from ("| knob | sets | since | default since | until |", "|---|---|---|---|---|")
    for knob in catalog.knob:
        if knob.since or knob.until or knob.defaults:
            moved = ", ".join(f"{since}: {value}" for since, value in knob.defaults.items())
            yield f"| `{knob.name}` | `{knob.sets}` | {knob.since} | {moved} | {knob.until} |"
    yield from ("", "| flag | its name now | since |", "|---|---|---|")
    for old, flag in catalog.renamed.items():
        yield f"| `{old}` | `{flag.now}` | {flag.since} |"
    yield from ("", "## Defaults and choices that moved, against the catalog's release", "")
    yield from ("| field | release | was | is |", "|---|---|---|---|")
    for known, of in ((engine_audit.recorded(), catalog.version), (config_audit.recorded(), shipped("vllm").version)):
        yield from _moved(known, of.rpartition(" ")[2])


def _called(engine: str, known: seams.Recorded, used: list[seams.Seam]) -> str:
    unfit = {release: len(seams.unfit(used, known.of(release) or {})) for release in known.releases}
    said = ", ".join(f"{release}: {count}" for release, count in unfit.items() if count) or "none"
    return f"| {engine} | {', '.join(known.releases)} | {len({seam.name for seam in used})} | {said} |"


def _moved(known: seams.Recorded, catalogs: str) -> Iterator[str]:
    """Sentences on changed fields that knobs may set (flags would repeat them)."""
    before = known.of(catalogs) or {}
    for name, held in known.names.items():
        for release, takes in held.items():
            later = known.releases.index(release) > known.releases.index(catalogs)
            if "." in name and later and takes is not None and before.get(name) is not None:
                yield f"| `{name}` | {release} | {_short(before[name])} | {_short(takes)} |"


def _short(takes: str | None) -> str:
    return (takes or "").replace(" | ", ", ")


def _order(engine: str) -> tuple[str, list[int]]:
    name, _, release = engine.partition(" ")
    return name, [int(part) for part in release.split(".")]


if __name__ == "__main__":
    if given := sys.argv[1:]:
        record(
            [msgspec.json.decode(Path(path).read_bytes().strip().rsplit(b"\n", 1)[-1], type=Audit) for path in given]
        )
    PAGE.write_text(page(PAGE.read_text()))
