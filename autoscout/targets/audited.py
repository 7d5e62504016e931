"""The result of `autoscout targets --audit`, which compares the catalog's rules with the engine's own validation."""

import functools
from pathlib import Path

import msgspec

RECORD = Path(__file__).with_name("audits.json")
# tolerated fraction of forbidden configurations that the engine accepts; a larger fraction suggests that the rules
# describe a different release
_FEW = 0.02


class Unset(msgspec.Struct, frozen=True):
    """An engine flag that affects speed or memory, but that no knob sets. `takes`: default and choices, such as "1 of 1
    | 2". `since`: the first recorded release that has the flag. `words`: number of words in the flag's name or help
    text that suggest speed or memory."""

    flag: str
    takes: str
    since: str
    help: str
    words: int


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Results of an audit. `drawn`: number of valid configurations tested. `refused`: error message → number of valid
    configurations that the engine rejected with this message. `changed`: field → (number of valid configurations in
    which the engine changed the field, an example). `forbidden`: number of tested configurations that the catalog's
    rules forbid. `accepted`: rule → number of configurations that the rule forbids but the engine accepted. `unsaid`:
    number of forbidden configurations that the engine accepted although the catalog states that the engine validates
    the rule. `moved`: field → (default in the catalog's release, default in this release)."""

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
            f"the engine refuses {sum(self.refused.values())} of {self.drawn:,} valid configurations and changes "
            f"{len(self.changed)} of their fields; the engine accepts {self.unsaid} of {self.forbidden:,} invalid "
            "configurations"
        )


@functools.cache
def recorded() -> dict[str, Audit]:
    """Returns the recorded audits by engine and release."""
    return msgspec.json.decode(RECORD.read_bytes(), type=dict[str, Audit])
