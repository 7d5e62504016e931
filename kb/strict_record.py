"""What a person writes."""

from typing import ClassVar

import msgspec


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unknown keys are errors."""

    later: ClassVar[tuple[str, ...]] = ()  # fields added when ids were already in use (see records.identity)
