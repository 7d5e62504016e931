"""Experiments with a server's launch line. Since a server does not end, the experiment is a shell script that starts
the server, waits until it responds, runs the engine's load tool, and ends the server."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autoscout.job.device_names import vendor_of
from autoscout.job.trace import lengths, read_trace
from autoscout.line.containers import ENVIRONMENTS, repeatable, runs_image
from autoscout.line.launch_line import Line
from autoscout.space.language.template import filled
from autoscout.targets.command.preset import Preset, Served
from kb.records import AutoscoutError, Job

_ROUNDS = 6  # requests per user in a closed loop: several, because the first and the last one see a lower load
_SECONDS = 60  # duration of an open loop in seconds
_SERVES = re.compile(r"^serve$|[-_]server$|^text-generation-launcher$")
_SERVERS_IMAGE = re.compile(r"/(text-generation-inference|llama\.cpp|lmdeploy|sglang|nim/[\w./-]+)(:|@|$)")
# A Python script that exits with 0 once the server responds, and with 1 if the server has exited. It ignores proxies.
_WAIT = """
import http.client, os, sys, time
port, path, server = sys.argv[1:]
while True:
    try:
        asked = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
        asked.request("GET", path)
        if asked.getresponse().status == 200:
            break
    except (OSError, http.client.HTTPException):
        pass
    try:
        os.kill(int(server), 0)
    except OSError:
        sys.exit(1)
    time.sleep(0.5)
"""


def script(job: Job, line: Line, preset: Preset, names: Mapping[str, Any]) -> Line:
    """Returns the script for a server's line; the line unchanged if the preset has no server. `names`: placeholders'
    values. Errors: AutoscoutError (exit 2) if the line names no model."""
    served = preset.served
    if served is None:
        return line
    at = _program(line, preset)
    before = line.of(line.words[:at])
    around = before.words if _inside(before) else ()  # container or environment that has the engine and its load tool
    python = line.words[at] if line.names[at].startswith("python") else "python3"
    names = {**names, "python": python, "model": model_of(line, served), "requests": _requests(job)}
    server = line.with_(served.port, names["port"])
    users = "--max-concurrency {concurrency}" if job.traffic.concurrency else "--request-rate {rate}"
    load = filled(f"{served.load} {users}", names, "preset", quoted=shlex.quote)
    lines = [
        f"{server} &",
        f"{shlex.join(['python3' if around else python, '-c', _WAIT, str(names['port']), served.ready])} $! || exit 1",
        f"{shlex.join(around)} {load}".strip(),
        "ended=$?; kill $!; exit $ended",
    ]
    return line.of(["bash", "-c", "\n".join(lines)])


def _program(line: Line, preset: Preset) -> int:
    """Returns the index of the server's program: its interpreter or the engine's command."""
    engines = [(*text.split(),) for text in preset.recognises]
    names = line.names
    begins = (i for i in range(len(names)) if any(names[i : i + len(engine)] == engine for engine in engines))
    return next((i for i, name in enumerate(names) if re.fullmatch(r"python[\d.]*", name)), next(begins, 0))


def _inside(before: Line) -> bool:
    """Whether these words start a container or activate a different environment."""
    return bool({*before.names} & {*ENVIRONMENTS} or before.first in ("bash", "sh"))


def by_experiments(line: Line, preset: Preset) -> Line:
    """Returns a line that can run repeatedly: without docker's interactive options, and on the host's network."""
    at = _program(line, preset)
    begins = runs_image(line.of(line.words[:at]))
    if begins < 0:
        return line
    before = repeatable(line.of(line.words[:at])).words
    reached = [] if any(word.startswith("--net") for word in before) else ["--network", "host"]
    return line.of([*before[: begins + 2], *reached, *before[begins + 2 :], *line.words[at:]])


def unknown(line: Line) -> str:
    """For a line without a preset, returns the word that suggests that the line starts a server; "" if there is
    none."""
    within = line.words if runs_image(line) >= 0 else ()
    images = (word for word in within if _SERVERS_IMAGE.search(word))
    return next((word for word in line.words[:4] if _SERVES.search(word)), next(images, ""))


def load_problems(job: Job, preset: Preset) -> Iterator[str]:
    """Yields a sentence for devices that the engine does not support, and for traffic that its load tool cannot
    generate. The tool's requests have a single length and arrive evenly or at random."""
    traffic, tool = job.traffic, f"the load tool of '{job.launch.script}'"
    if preset.served is None:
        return
    if lacks := not_running_on(job, preset.served):
        yield f"cluster.nodes: '{job.launch.script}' {lacks}"
    if traffic.sessions or traffic.shared_prefix:
        yield f"traffic: {tool} supports neither sessions nor shared_prefix; remove them"
    elif traffic.trace or isinstance(traffic.input_len, list) or isinstance(traffic.output_len, list):
        asked, answered = (round(sum(each) / len(each)) for each in lengths(job))
        arrivals = read_trace(Path(traffic.trace))[0] if traffic.trace else None
        rate = (len(arrivals) - 1) / max(float(arrivals[-1]), 1e-9) if arrivals is not None else 0.0
        kept = (traffic.rate or rate) and not traffic.concurrency
        pace = f"rate = {traffic.rate or rate:.3g}" if kept else f"concurrency = {traffic.concurrency or 32}"
        yield (
            f"traffic: {tool} sends requests of a single length; write {pace}, input_len = {asked} and output_len = "
            f"{answered}, which are the means, instead of {'trace' if traffic.trace else 'quantiles'}"
        )


def not_running_on(job: Job, served: Served) -> str:
    """Returns that the engine does not support the job's devices; "" if it does."""
    others = [node.device for node in job.cluster.nodes if vendor_of(node.device) not in ("", "nvidia")]
    return f"runs only on NVIDIA's GPUs, not on {others[0]}" if served.nvidia and others else ""


def problem(line: Line, served: Served) -> str:
    """Returns why an experiment cannot start the line's server; "" if it can."""
    nodes = line.number(("--nnodes",))
    if other := next((word for flag in served.model if (word := line.value(flag)) in served.others), None):
        return f"'{other}' does not start a server of one model, and AutoScout can send load only to such a server"
    if nodes > 1:
        return f"the server spans {nodes} nodes (--nnodes), but AutoScout can send load only to a server on one node"
    return ""


def model_of(line: Line, served: Served) -> str:
    """Returns the model in a server's line. Errors: AutoscoutError (exit 2) if it names none."""
    found = next((value for flag in served.model if isinstance(value := line.value(flag), str)), "")
    if not found:
        raise AutoscoutError(f"launch.current: the server's line names no model ({' or '.join(served.model)} NAME)", 2)
    return found


def devices_of(line: Line, served: Served) -> int:
    """Returns the number of devices that the line uses."""
    flags = served.devices[: 1 if served.first_alone in line.words else None]
    return math.prod(line.number((flag,)) or 1 for flag in flags)


def canonical(line: Line, known: Preset, served: Served) -> Line:
    """Returns the line with aliases and abbreviations replaced by the flag names that the preset's knobs use."""
    at = _program(line, known)
    names = {*(knob.sets for knob in known.knob), *served.aliases, *served.columns, *served.unread}
    names |= {*served.unpriced, *served.unmodelled}

    def whole(flag: str, place: int) -> str:
        longer = {served.aliases.get(name, name) for name in names if name.startswith(flag)}
        abbreviated = served.abbreviations and place > at and flag[:2] == "--" and flag not in names
        return longer.pop() if abbreviated and len(longer) == 1 else served.aliases.get(flag, flag)

    parts = (word.partition("=") for word in line.words)
    return line.of(f"{whole(name, i)}{equals}{value}" for i, (name, equals, value) in enumerate(parts))


def _requests(job: Job) -> int:
    traffic = job.traffic
    return traffic.requests or max(32, round(_ROUNDS * traffic.concurrency or _SECONDS * traffic.rate))
