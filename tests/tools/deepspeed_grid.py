"""Measures every configuration of a DeepSpeed job repeatedly, for a table on which searches are compared.

python tests/tools/deepspeed_grid.py JOB.toml OUT.csv [--repeats 10]

It runs in rounds of random order, so that other load affects all configurations equally, and can be resumed. A row per
run: round, the configuration's name, its knobs, status, step_time_s (median of its iterations), seconds of the run."""

import argparse
import csv
import random
import tempfile
import time
from pathlib import Path

from autoscout.targets.jobs import JobSpace, load_job, profiler_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=10)
    asked = parser.parse_args()
    job = load_job(asked.job)
    space = JobSpace.of_job(job)
    everything = space.feasible
    configurations = [everything.configuration(row) for row in range(len(everything.codes))]
    columns = ["round", "name", *(knob.name for knob in space.knobs), "status", "step_time_s", "run_s", "loss_3"]
    known = set()
    if asked.out.exists():
        known = {(int(row["round"]), row["name"]) for row in csv.DictReader(asked.out.open())}
    profiler = profiler_of(job)
    with asked.out.open("a", newline="") as file, tempfile.TemporaryDirectory() as folder:
        writer = csv.DictWriter(file, columns)
        if not known:
            writer.writeheader()
        for number in range(1, asked.repeats + 1):
            for configuration in random.Random(number).sample(configurations, len(configurations)):
                name = space.name(configuration)
                if (number, name) in known:
                    continue
                began = time.monotonic()
                found = profiler.run(configuration, name, Path(folder))
                row = {"round": number, "name": name, **configuration.knobs, "status": found.status}
                row |= {
                    "step_time_s": found.metrics.get("step_time_s", ""),
                    "run_s": round(time.monotonic() - began, 1),
                }
                writer.writerow({**row, "loss_3": found.losses[2] if len(found.losses) > 2 else ""})
                file.flush()
    profiler.close()


if __name__ == "__main__":
    main()
