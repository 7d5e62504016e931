"""Whether experiments on one host disturb each other, as measured by earlier sessions of the same job and machines."""

from pathlib import Path

import msgspec

from kb.connect import reader
from kb.journal import Neighbours

_NEWEST = """
    SELECT d.session, d.body FROM decision AS d JOIN session AS s ON s.id = d.session
    WHERE d.type = 'neighbours' AND s.context = $context AND (d.body ->> 'shape') = $shape
      AND (d.body ->> 'known_from') = ''
    ORDER BY d.unix_s DESC LIMIT 1
"""


def found_before(kb: Path, context: str, shape: str) -> Neighbours | None:
    """The newest result of earlier sessions; None if there is none. Errors: AutoscoutError."""
    with reader(kb) as con:
        row = con.execute(_NEWEST, {"context": context, "shape": shape}).fetchone()
    if row is None:
        return None
    return msgspec.structs.replace(msgspec.json.decode(row[1], type=Neighbours), known_from=row[0], at=0.0)
