"""What an audit of an engine found: `autoscout targets --audit`."""

import msgspec

_FEW = 0.02  # of the forbidden ones: our rules may be of another release


class Unset(msgspec.Struct, frozen=True):
    """A flag that no knob sets. `since`: the first recorded release that has it; `words`: of speed or memory in it."""

    flag: str
    takes: str
    since: str
    help: str
    words: int


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """`drawn` valid configurations: `refused` by message, `changed` by field (how often, an example). `forbidden` ones:
    `accepted` by the rule that forbids them, with who checks it by the catalog, `unsaid` of them although its own
    validation should, by the catalog. `moved`: field → (default of the
    catalog's release, of this one)."""

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
