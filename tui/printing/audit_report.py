"""Prints an audit: how an engine's real arguments and functions differ from what AutoScout assumes."""

import click
import msgspec

from autoscout.targets.audited import Audit
from tui.printing.document import document

_SHOWN = 25  # largest number of listed flags without a knob


def audit(found: Audit, as_json: bool) -> None:
    """Prints an audit. Exits with code 1 if the engine refuses or changes arguments that AutoScout would pass."""
    if as_json:
        document(msgspec.to_builtins(found))
    else:
        click.echo("\n".join(_lines(found)))
    if not found.sound:
        raise SystemExit(1)


def _lines(found: Audit) -> list[str]:
    how = "its own parser and validation" if found.parses else "its configuration classes (this release has no parser)"
    known = "a recorded release" if found.recorded else "a release without a record"
    lines = [f"{found.engine} ({known}), compared through {how}, for {', '.join(found.jobs)}", ""]
    lines.append(f"calls of AutoScout that the engine does not accept: {len(found.unfit)}")
    lines += [f"  {text}" for text in found.unfit]
    refused = sum(found.refused.values())
    lines.append(f"the engine refuses {refused} of {found.drawn} configurations drawn from the space")
    lines += [f"  {count} × {text}" for text, count in found.refused.items()]
    lines.append(f"the engine silently changes {len(found.changed)} {'field' if len(found.changed) == 1 else 'fields'}")
    lines += [f"  {count} × {name}: {example}" for name, (count, example) in found.changed.items()]
    accepted = sum(found.accepted.values())
    lines.append(
        f"the engine accepts {accepted} of {found.forbidden} configurations that one of our rules forbids (no model "
        f"was "
        f"built); according to our catalog, it should refuse {found.unsaid} of them"
    )
    lines += [f"  {count} × {rule}" for rule, count in found.accepted.items()]
    if found.moved:
        lines += [
            "",
            f"{len(found.moved)} fields have different defaults or choices from those in the catalog's release",
        ]
        lines += [f"  {name}: {before} → {now}" for name, (before, now) in found.moved.items()]
    if not found.parses:
        return lines
    lines += ["", f"{len(found.unset)} flags about speed or memory that no knob sets; the first {_SHOWN}:"]
    lines += [f"  {each.flag} ({each.takes}; since {each.since}): {each.help[:120]}" for each in found.unset[:_SHOWN]]
    return [*lines, "", "autoscout targets --draft --FLAG prints a catalog row for a flag"]
