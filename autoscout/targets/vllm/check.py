"""Checks that an exported server starts and responds on this machine."""

import contextlib
import http.client
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from autoscout.job import yaml_text
from autoscout.running import processes
from autoscout.running.cluster import gpus
from autoscout.running.cluster.devices import device_kind
from autoscout.targets.launch import Launch, words
from autoscout.targets.vllm import fleet_servers, formats, keeper
from autoscout.targets.vllm import server as serving_server
from autoscout.targets.vllm.failures import cause_in_log
from autoscout.targets.vllm.served_model import model_folder
from kb.records import AutoscoutError, Job

_END_LIMIT_S = 60.0
_ASK_S = 60.0


def check(job: Job, found: Launch, form: str) -> float:
    """Returns the seconds until the server exported as `form` was ready. Also checks that the server answers a request.
    Errors: AutoscoutError (exit 1) with the cause."""
    with serving(job, found, form) as (port, seconds, log):
        _ask(port, found.name, log)
    return seconds


@contextlib.contextmanager
def serving(job: Job, found: Launch, form: str) -> Iterator[tuple[int, float, Path]]:
    """Starts a server on this machine from the export: a shell command, a Slurm script, a container, or `vllm serve
    --config` with the YAML file. Yields (port, seconds until it was ready, log), and then ends all its processes. A job
    with random weights uses the model of its experiments."""
    wanted, seen = max(found.devices, default=0), len(gpus.look())
    if device_kind(job) == "cuda" and seen < wanted:
        shows = f"this machine shows {seen or 'no'} GPU{'s' * (seen > 1)}"
        raise AutoscoutError(
            f"{found.name}: {shows}, but each node of the export needs {wanted}; run --check on such a node", 2
        )
    port = processes.free_port()
    model = model_folder(job)
    python = Path(job.launch.python or sys.executable)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="autoscout-") as folder:
        log = Path(folder) / "server.log"
        line = _line(found, form, model, port, Path(folder))
        environ = serving_server.variables({"PATH": f"{python.absolute().parent}:{os.environ['PATH']}"})
        with open(log, "wb") as output:
            server = serving_server.started(
                [sys.executable, keeper.__file__, *job.launch.command_prefix, "bash", "-c", line],
                output,
                environ | found.environment | {"HF_HUB_OFFLINE": "1"},
            )
        members: dict[int, str] = {}

        def late() -> bool:
            return time.monotonic() - began > job.launch.timeout_s

        try:
            if not serving_server.ready_before(server, port, lambda: late() or server.poll() is not None, members):
                raise AutoscoutError(f"{found.name}: {_why(log, late(), job.launch.timeout_s)}")
            yield port, time.monotonic() - began, log
        finally:
            serving_server.end(server, _END_LIMIT_S, members)


def _line(found: Launch, form: str, model: str, port: int, folder: Path) -> str:
    if found.servers:
        named = [msgspec.structs.replace(one, program=[*one.program[:-1], model]) for one in found.servers]
        ports = [port, *(processes.free_port() for _ in named)]
        (folder / "fleet.sh").write_text(fleet_servers.script(named, found.router, ports))
        return f"exec bash {folder / 'fleet.sh'}"
    here = f"--host 127.0.0.1 --port {port}"
    if form == "yaml":
        path = folder / "vllm.yaml"
        path.write_text(formats.yaml(found).replace(yaml_text.emitted(found.program[-1]), yaml_text.emitted(model)))
        return f"exec vllm serve --config {path} {here}"
    flags = [word for pair in words(found) for word in pair]
    return f"exec vllm serve {shlex.quote(model)} {shlex.join(flags)} {here}"


def _why(log: Path, late: bool, limit_s: float) -> str:
    text = log.read_text(errors="replace")
    if cause := cause_in_log(text):
        return f"the exported server does not start: {cause[1] or cause[0]}"
    last = (text.strip().splitlines() or ["nothing"])[-1][-300:]
    return f"the exported server {f'was not ready after {limit_s:g} s' if late else 'ended'}; its last line: {last}"


def _ask(port: int, name: str, log: Path) -> None:
    """Sends a prompt of three token ids that exist in every vocabulary."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ASK_S)
    try:
        connection.request("GET", "/v1/models")
        model = json.loads(connection.getresponse().read())["data"][0]["id"]
        body = json.dumps({"model": model, "prompt": [11, 12, 13], "max_tokens": 2, "ignore_eos": True})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        body = response.read().decode(errors="replace")
        if response.status != 200 or json.loads(body)["usage"]["completion_tokens"] != 2:
            kind, why = cause_in_log(log.read_text(errors="replace")) or ("", "")
            answer = f"{response.status}: {f'{kind}: {why}' if kind else body[:300]}"
            raise AutoscoutError(f"{name}: the exported server starts, but answers {answer}")
    except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
        raise AutoscoutError(f"{name}: the exported server starts, but does not answer ({error})") from error
    finally:
        connection.close()
