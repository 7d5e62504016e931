"""The base class of records that users write in job files."""

from typing import ClassVar

import msgspec


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A struct in which unknown keys are errors."""

    later: ClassVar[tuple[str, ...]] = ()  # fields that were added after ids were in use (see records.identity)
