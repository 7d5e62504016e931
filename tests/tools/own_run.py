"""The overhead of measuring a user's own command: a table of docs/your-own-script.md.

    PYTHONPATH=. python tests/tools/own_run.py [--repeats 9] [--megabytes 2000]

Prints minima of several runs, because other programs disturb: of reading a log from memory; of reading the same log
through a command's pipe, with the reader's peak memory; and of an experiment over the bare command (run alternately;
wall and CPU time)."""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from autoscout.running import supervised
from autoscout.targets.command.profiler import CommandProfiler
from autoscout.targets.command.reading import MetricReader, Stream
from autoscout.targets.jobs import load_job
from kb.records import Configuration, MetricSource

_LINE = b"a line of a log as most are, of a hundred bytes or so: shapes, warnings, progress, and the like %06d\n"
_STEP = b" iteration %d/ 100 | elapsed time per iteration (ms): 12.5 | lm loss: 6.4E+00 | grad norm: 0.961 |\n"
_PATTERNS = (
    r"elapsed time per iteration \(ms\): ([\d.]+)",
    r"lm loss: ([\dE.+-]+|nan)",
    r"grad norm: ([\d.]+|nan)",
)
_JOB = """
name = "overhead"
target = "command"
objective = { minimize = "step_time_s" }
[launch]
command = "SCRIPT --n 1"
measure_s = 60
iterations = 1000
[launch.metrics]
step_time_ms = 'took ([\\d.]+) ms'
[space]
knob = [{ name = "n", values = [1, 2], sets = "--n" }]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=2000)
    given = parser.parse_args()
    print("| | |\n|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _reading(given.megabytes, given.repeats)
        _through_a_pipe(folder, given.megabytes, given.repeats)
        _overhead(folder, given.repeats)


def piece() -> bytes:
    """A megabyte of log with ten lines that match the patterns."""
    part = b"".join(_LINE % i for i in range(1000)) + _STEP % 7
    return (part * 11)[: 2**20].rpartition(b"\n")[0] + b"\n"


def _stream() -> Stream:
    return Stream([MetricReader(MetricSource(pattern=pattern)) for pattern in _PATTERNS])


def _reading(megabytes: int, repeats: int) -> None:
    text, count = piece(), max(1, megabytes // repeats)

    def once() -> None:
        stream = _stream()
        for _ in range(count):
            stream.feed(text, 0.0)

    clock, used = _least(once, repeats)
    size = len(text) * count / 1e6
    print(f"| reading a log, three patterns | {size / used:.0f} MB a second of CPU, {size / clock:.0f} by the clock |")


def _through_a_pipe(folder: Path, megabytes: int, repeats: int) -> None:
    (folder / "text").write_bytes(piece())
    script = f"import sys\nfor _ in range({megabytes}): sys.stdout.buffer.write(text)\n"
    (folder / "loud.py").write_text(f"text = open('{folder}/text', 'rb').read()\n{script}")

    def once() -> None:
        stream = _stream()
        supervised.run(
            [sys.executable, "-S", str(folder / "loud.py")],
            {},
            folder,
            folder,
            600.0,
            lambda: False,
            lambda said: stream.feed(said, 0.0),
            lambda: "",
        )

    before = _rss()
    clock, used = _least(once, max(1, repeats // 3))
    size = len(piece()) * megabytes / 1e6
    kept = (folder / "output.log").stat().st_size / 1e6
    print(f"| the same through a command's pipe | {size / clock:.0f} MB/s by the clock, {size / used:.0f} of our CPU |")
    print(f"| memory for {size / 1000:.1f} GB of it | {_rss() - before:.0f} MB; {kept:.0f} MB are kept on disk |")


def _overhead(folder: Path, repeats: int) -> None:
    script = folder / "quick.sh"
    script.write_text("#!/bin/sh\nfor i in 1 2 3 4 5 6; do echo took 1$i.5 ms; done\n")
    script.chmod(0o755)
    path = folder / "job.toml"
    path.write_text(_JOB.replace("SCRIPT", str(script)))
    profiler = CommandProfiler(load_job(path))
    profiler.environment()

    def experiment() -> None:
        found = profiler.run(Configuration({"n": 1}), "n1", folder / "experiment")
        assert found.status == "ok", found.evidence

    ours, used = _least(experiment, repeats, children=True)
    bare, their = _least(lambda: subprocess.run([str(script)], capture_output=True), repeats, children=True)
    clock, cpu = 1000 * (ours - bare), 1000 * (used - their)
    print(f"| an experiment over the bare command | {clock:.0f} ms by the clock, {cpu:.0f} ms of CPU |")


def _least(what: Callable[[], object], repeats: int, children: bool = False) -> tuple[float, float]:
    """(wall seconds, CPU seconds), the minima over repeats."""
    clocks, used = [], []
    for _ in range(repeats):
        began, cpu = time.perf_counter(), _cpu(children)
        what()
        clocks.append(time.perf_counter() - began)
        used.append(_cpu(children) - cpu)
    return min(clocks), min(used)


def _cpu(children: bool) -> float:
    whose = [resource.RUSAGE_SELF, *([resource.RUSAGE_CHILDREN] if children else [])]
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, whose))


def _rss() -> float:
    """Peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
