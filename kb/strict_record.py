"""The base of records that users write."""

from typing import ClassVar

import msgspec


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A struct in which unknown keys are errors."""

    later: ClassVar[tuple[str, ...]] = ()  # fields added when ids were already in use (see records.identity)
