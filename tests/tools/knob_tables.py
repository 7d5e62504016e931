"""Writes the tables of docs/lab/knobs.md from the catalogs, and checks which of Megatron's rules are where.

PYTHONPATH=. python tests/tools/knob_tables.py
"""

import re
from pathlib import Path

from autoscout.space.knob import Catalog, KnobEntry
from autoscout.targets.target import shipped

PAGE = Path("docs/lab/knobs.md")
TARGETS = ("megatron", "vllm", "deepspeed")


def knobs(catalog: Catalog) -> str:
    header = (
        "| knob | layer | kind | values | default | acts when | what it does | sets | since | off unless allowed |\n"
    )
    header += "|---" * 10 + "|"
    return "\n".join([header, *(_row(knob) for knob in catalog.knob)])


def rules(catalog: Catalog) -> str:
    header = "| rule | must hold | why | known from | refused by |\n" + "|---" * 5 + "|"
    rows = [f"| {r.id} | `{r.holds}` | {r.reason} | {r.source} | {r.checked} |" for r in catalog.rule]
    return "\n".join([header, *rows])


def page(text: str) -> str:
    """The page with every table as the catalogs are now."""
    for target in TARGETS:
        catalog = shipped(target)
        text = _between(text, f"{target} knobs", knobs(catalog))
        text = _between(text, f"{target} rules", rules(catalog))
    return text


def _row(knob: KnobEntry) -> str:
    values = f"`{knob.values}`" if isinstance(knob.values, str) else ", ".join(_shown(v) for v in knob.values)
    unit = f" {knob.unit}" if knob.unit else ""
    when = f"`{knob.when}`" if knob.when else "always"
    keeps = f" ({', '.join(knob.keeps)})" if knob.keeps else ""
    default = "" if knob.default is None else _shown(knob.default)
    kind = knob.kind + (", implied" if knob.implied else "")
    asks = f"{', '.join(map(_shown, knob.asks))}: {knob.asks_for}" if knob.asks else ""
    cells = (knob.name, knob.layer, kind, values + unit, default, when + keeps, knob.meaning, f"`{knob.sets}`")
    cells += (knob.since, asks)
    return f"| {' | '.join(cell.replace('|', '¦') for cell in cells)} |"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _between(text: str, name: str, table: str) -> str:
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
    if not pattern.search(text):
        raise ValueError(f"{PAGE} has no <!-- {name} --> … <!-- end -->")
    return pattern.sub(lambda match: match[1] + table + "\n" + match[2], text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
