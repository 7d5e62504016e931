"""What an audit of an engine found: `autoscout targets --audit`."""

import functools
from pathlib import Path

import msgspec

RECORD = Path(__file__).with_name("audits.json")
_FEW = 0.02  # share of the forbidden configurations: our rules may describe another release


class Unset(msgspec.Struct, frozen=True):
    """A flag that no knob sets. `since`: the first recorded release that has it; `words`: of speed or memory in it."""

    flag: str
    takes: str
    since: str
    help: str
    words: int


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found. `drawn`: the number of valid configurations; `refused`: how many of them by message;
    `changed`: by field, how many and an example. `forbidden`: the number of configurations that our rules forbid;
    `accepted`: how many of them by rule, with who checks it by the catalog; `unsaid`: how many were accepted although,
    by the catalog, the engine's own validation should refuse them. `moved`: field → (default in the catalog's release,
    default in this one)."""

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
