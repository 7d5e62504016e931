"""Results of shadow runs, as rows of the table `shadow`, so that SQL can query them."""

import time
from pathlib import Path
from typing import Any

from kb.connect import writer
from kb.records import Configuration, Job
from kb.rows import insert

_KEY = ("job_id", "configuration", "versions", "from_parts")


def remember(kb: Path, job: Job, configuration: Configuration, columns: dict[str, Any]) -> None:
    """Stores the result of a shadow in place of an earlier one. `columns`: the table's columns other than those of the
    job and the configuration. Errors: AutoscoutError."""
    row = {
        "job_id": job.id,
        "job": job.name,
        "configuration": configuration.id,
        "knobs": configuration.knobs,
        "traced": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        **columns,
    }
    values = ", ".join(f"{name} = excluded.{name}" for name in row if name not in _KEY)
    with writer(kb) as con:
        insert(con, "shadow", [row], f"({', '.join(_KEY)}) DO UPDATE SET {values}")
