"""Stores the results of shadow runs (the framework's own code with fake tensors) in the table `shadow`, for queries."""

import time
from pathlib import Path
from typing import Any

from kb.connect import writer
from kb.records import Configuration, Job
from kb.rows import insert

_KEY = ("job_id", "configuration", "versions", "from_parts")


def remember(kb: Path, job: Job, configuration: Configuration, columns: dict[str, Any]) -> None:
    """Stores a result, replacing an earlier one of the same job and configuration. `columns`: the other columns of the
    table. Errors: AutoscoutError."""
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
