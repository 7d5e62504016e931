"""What an audit of an engine found: `autoscout targets --audit`."""

import functools
from pathlib import Path

import msgspec

RECORD = Path(__file__).with_name("audits.json")
_FEW = 0.02  # share of forbidden configurations accepted; above it, our rules may describe another release


class Unset(msgspec.Struct, frozen=True):
    """A flag that no knob sets. `since`: the first recorded release that has it; `words`: those in its name or help
    text that suggest speed or memory."""

    flag: str
    takes: str
    since: str
    help: str
    words: int


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found. `drawn`: the number of valid configurations tried; `refused`: error message → how many of
    them the engine refused with it; `changed`: field → (how many had it changed by the engine, an example).
    `forbidden`: the number of configurations tried that our rules forbid; `accepted`: rule → how many of its
    configurations the engine accepted, and who checks the rule according to the catalog; `unsaid`: how many were
    accepted although, by the catalog, the engine's own validation should refuse them. `moved`: field → (default in the
    catalog's release, default in this one)."""

    engine: str
    recorded: bool
    parses: bool
    jobs: list[str]
    drawn: int
    refused: dict[str, int]
    changed: dict[str, tuple[int, str]]
    forbidden: int
    accepted: dict[str, int]
    unsaid: int
    unset: list[Unset]
    moved: dict[str, tuple[str, str]]
    unfit: list[str]

    @property
    def sound(self) -> bool:
        return not (self.refused or self.changed or self.unfit) and self.unsaid <= _FEW * self.forbidden

    @property
    def counts(self) -> str:
        return (
            f"of {self.drawn:,} valid configurations the engine refuses {sum(self.refused.values())} and changes "
            f"{len(self.changed)} fields; of {self.forbidden:,} invalid ones it wrongly accepts {self.unsaid}"
        )


@functools.cache
def recorded() -> dict[str, Audit]:
    """Audits of releases, by engine and release."""
    return msgspec.json.decode(RECORD.read_bytes(), type=dict[str, Audit])
