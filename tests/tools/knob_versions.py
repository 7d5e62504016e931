"""Finds the first megatron-core release with each field that a knob of the catalog sets, in Megatron-LM's tags. Writes
the table of docs/lab/knobs.md, and reports where a catalog's `since` is too early.

    PYTHONPATH=. python tests/tools/knob_versions.py CHECKOUT-OF-MEGATRON-LM
"""

import re
import subprocess
import sys
from pathlib import Path

from autoscout.targets.target import shipped

PAGE = Path("docs/lab/knobs.md")
RELEASES = [f"0.{minor}.0" for minor in range(6, 20)]
FILES = (
    *("megatron/core/transformer/transformer_config.py", "megatron/core/model_parallel_config.py"),
    *("megatron/core/distributed/distributed_data_parallel_config.py", "megatron/core/optimizer/optimizer_config.py"),
    "megatron/training/arguments.py",
)


def texts(checkout: str) -> dict[str, str]:
    """Release → the source code that declares fields and flags."""
    found = {}
    for release in RELEASES:
        parts = [
            subprocess.run(
                ["git", "-C", checkout, "show", f"core_v{release}:{file}"], capture_output=True, text=True
            ).stdout
            for file in FILES
        ]
        found[release] = "".join(parts).replace("-", "_")
    return found


def first(field: str, known: dict[str, str]) -> str:
    """The first release with the field, or "older" if the first searched release has it."""
    release = next((r for r in known if re.search(rf"\b_*{field}\b", known[r])), "")
    return "older" if release == RELEASES[0] else release.rpartition(".")[0] or "none"


def main(checkout: str) -> None:
    known = texts(checkout)
    rows = [
        "| knob | fields, and the first megatron-core of each | offered from | off unless allowed |",
        "|---" * 4 + "|",
    ]
    for knob in shipped("megatron").knob:
        fields = [f for f in re.split(r",\s*", knob.sets) if re.fullmatch(r"[a-z0-9_]+", f)]
        versions = {f: first(f, known) for f in fields}
        asked = ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in knob.asks)
        newest = max((v for v in versions.values() if v[0] == "0"), key=lambda v: int(v[2:]), default="")
        offered = max([knob.since, *knob.newer.values()], key=lambda v: int(v[2:] or 0))
        if offered and newest and int(offered[2:]) < int(newest[2:]):
            print(f"{knob.name}: since {knob.since}, but {versions}")
        if offered or asked:
            since = [*([knob.since] if knob.since else []), *(f"{v} {n}" for v, n in knob.newer.items())]
            said = ", ".join(f"`{f}` {v}" for f, v in versions.items()) or f"`{knob.sets}`"
            rows.append(
                f"| `{knob.name}` | {said} | {', '.join(since)} | {asked + ': ' + knob.asks_for if asked else ''} |"
            )
    PAGE.write_text(between(PAGE.read_text(), "megatron versions", "\n".join(rows)))


def between(text: str, name: str, table: str) -> str:
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
    if not pattern.search(text):
        raise ValueError(f"{PAGE} has no <!-- {name} --> … <!-- end -->")
    return pattern.sub(lambda match: match[1] + table + "\n" + match[2], text)


if __name__ == "__main__":
    main(sys.argv[1])
