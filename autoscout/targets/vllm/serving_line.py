"""Converts the user's current `vllm serve` command (`[launch] current`) to a configuration, or to a job."""

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from autoscout.job.hf_config import encoders, shape_of
from autoscout.job.model_folder import folder_of
from autoscout.job.names import as_name
from autoscout.job.published_models import published
from autoscout.line.containers import CONTAINERS, SERVER_IMAGE, by_images_entry, repeatable, runs_image
from autoscout.line.launch_line import Line
from autoscout.running.interpreter import of_program
from autoscout.space.graph import Space
from autoscout.targets import current_launch
from autoscout.targets.guessed_load import GUESSED, REVIEW_LOAD, REVIEW_PROMISE
from autoscout.targets.vllm.arguments import engine_arguments_of, flags
from autoscout.targets.vllm.expert import batches
from autoscout.targets.vllm.flag_kinds import not_had
from autoscout.targets.vllm.host_tier import tier_problems
from autoscout.targets.vllm.kept import asked_for
from autoscout.targets.vllm.line_flags import (
    SWITCHES,
    begins,
    count_of,
    flags_in,
    flags_of,
    given_flags,
    model_named,
    spread,
)
from autoscout.targets.vllm.settings_file import with_file
from kb.records import AutoscoutError, Configuration, Draft, Job

_RANKS = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
# flags that are not kept, because AutoScout computes them from the job's nodes
_PLACING = ("--data-parallel-size-local",)
_LOAD = {  # flags of `vllm bench serve` → fields of [traffic]
    "--random-input-len": "input_len",
    "--random-output-len": "output_len",
    "--input-len": "input_len",
    "--output-len": "output_len",
    "--num-prompts": "requests",
    "--max-concurrency": "concurrency",
}
_PER_NODE = 8


def job_of_server(given: Line) -> dict[str, Any] | None:
    """Returns a job file's content from a line that starts a server, possibly with a load test (`vllm bench serve`),
    plus the keys `devices` (number of devices of each node), `notes` (what the user should check) and `elsewhere`
    (whether the line's vLLM is not installed on this machine). None if the line starts no server."""
    given = by_images_entry(given)
    start, words = begins(given), given.words
    if start is None:
        return None
    loads = next((i for i in range(start, len(words)) if words[i : i + 3] == ("vllm", "bench", "serve")), len(words))
    notes: list[str] = []
    own = with_file(given.of(word for word in words[start:loads] if word not in ("&", "&&", ";")), notes)
    line = _model_first(given.of(["vllm", "serve", *own.words]))
    if why := not_had(line):
        raise AutoscoutError(f"the line {why}", 2)
    flags = flags_in(line)
    named = model_named(line)
    launch: dict[str, Any] = {"current": str(line)}
    model = _model_of(named, launch, notes)
    if "".join(flags.get("--dtype", [])) in ("float", "float32"):
        model["dtype"] = "fp32"
    if draft := _draft_of(flags):
        launch["draft"] = draft
    if "--headless" in flags:
        notes.append("launch.current: --headless is for nodes other than the first; write the first node's command")
    before, program = _before(given.of(words[:start]))
    if before and Path(before[0]).name in (*CONTAINERS, "srun"):
        launch |= {"command_prefix": before, "python": "python3"}
        notes.append("launch.command_prefix: mount this folder, the model and autoscout's package in the container")
    elif before:
        launch |= {"command_prefix": before, "python": of_program(program, os.environ.get("PATH", "")) or "python3"}
    elif python := of_program(program, os.environ.get("PATH", os.defpath)):
        launch["python"] = python
    else:
        notes.append("launch.python: write the path of the interpreter that has vLLM")
    traffic = _traffic_of(given.of(words[loads:]), _whole(flags, "--max-model-len"), notes)
    users, admitted = GUESSED["concurrency"], _whole(flags, "--max-num-seqs")
    if loads == len(words) and admitted > users:
        notes.append(
            f"traffic.concurrency: {users} users is a guess, because the launch line only limits concurrent "
            f"requests to {admitted}; write your own number"
        )
    made = {
        "name": as_name(Path(named).name, "server"),
        "task": "serve",
        "target": "vllm",
        "model": model,
        "traffic": traffic,
        "objective": {"maximize": "output_tokens_per_s"},
        "launch": launch,
    }
    ranks = math.prod(_whole(flags, flag) or 1 for flag in _RANKS)
    if asked := asked_for(flags):
        made["space"] = {"fix": asked}
    notes.append(REVIEW_PROMISE)
    elsewhere = not _is_here(launch.get("python", ""))
    return {**made, "notes": notes, "devices": _nodes(flags, ranks), "elsewhere": elsewhere}


def _nodes(flags: Mapping[str, list[str]], ranks: int) -> list[int]:
    """Returns the number of devices of each node: from the line; else eight, or all `ranks` if not a multiple of 8."""
    own = _whole(flags, "--data-parallel-size-local")
    named = _whole(flags, "--nnodes") or (_whole(flags, "--data-parallel-size") // own if own else 0)
    count = named or (ranks // _PER_NODE if ranks % _PER_NODE == 0 else 1)
    return [ranks // count] * count if ranks % count == 0 else [ranks]


def _whole(flags: Mapping[str, list[str]], flag: str) -> int:
    """Returns the integer value of a flag; 0 if there is none."""
    return count_of((flags.get(flag) or [""])[0]) or 0


def _before(line: Line) -> tuple[list[str], str]:
    """Returns the words before the interpreter (a container or launcher), and the program that starts the server."""
    line = repeatable(line)
    words = [*line.words]
    if runs_image(line) >= 0 and not any(word.startswith("--net") for word in words):
        at = words.index("--rm") + 1
        words[at:at] = ["--network", "host"]  # so that the load generator on the host reaches the server
    if words and SERVER_IMAGE.search(words[-1]):
        return [*words[:-1], "--entrypoint", "", words[-1]], ""
    if words[-1:] == ["serve"]:
        return words[:-2], words[-2]
    started = max((i for i, name in enumerate(line.names) if name.startswith("python")), default=-1)
    return (words[:started], words[started]) if started >= 0 else (words[:-3], "python3")


def _is_here(python: str) -> bool:
    """Whether a Python on this machine has vLLM."""
    return any(Path(python).absolute().parent.parent.glob("lib/python*/*-packages/vllm")) if python else False


def _model_first(line: Line) -> Line:
    """Returns the line with the model before the flags, as in vLLM's own examples."""
    flags, (vllm, serve, *own) = flags_of(line), line.words
    if not flags or not own[0].startswith("-") or "--model" in flags:
        return line
    flag, values = list(flags.items())[-1]
    alone = len(values) > 1 or (len(values) == 1 and flag.startswith(SWITCHES))
    named = alone and "=" not in own[-1] and ("/" in own[-1] or Path(own[-1]).is_dir())
    return line.of([vllm, serve, own[-1], *own[:-1]]) if named else line


def _draft_of(flags: Mapping[str, list[str]]) -> dict[str, str]:
    """Returns launch.draft for the line's speculative decoding method; {} if the line has no such method, or a method
    without a draft model."""
    method, model = ("".join(flags.get(f"--speculative-config.{name}", [])) for name in ("method", "model"))
    if not method and model:  # default method in vllm/config/speculative.py
        method = next((kind for kind in ("eagle3", "eagle", "medusa") if kind in model.lower()), "draft_model")
    if method not in get_args(get_type_hints(Draft)["method"]) or not (model or method == "mtp"):
        return {}
    return {"method": method, **({"model": model} if model else {})}


def _model_of(named: str, launch: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Returns [model] for the served model: from a folder, the Hugging Face cache, or a known model of that name.
    Errors: AutoscoutError (exit 2) for an unsupported model."""
    if (folder := folder_of(named)) is not None:
        launch["model_path"] = str(folder.resolve())
        config = folder.resolve() / "config.json"
        shape_of(config, "serve")  # reports an unsupported shape now, since the job could not be used
        if encoders(config):
            notes.append("model: parts for images or sound are not counted, because the prompts of a load are text")
        return {"from": str(config)}
    if known := published(named):
        otherwise = "" if len(known) > 1 else "; without the folder, random weights of that shape are served"
        where = (
            f"{named} is not a folder on this machine; write the model's folder"
            if named.startswith("/")
            else f"the folder of {named}"
        )
        notes.append(f"launch.model_path: {where}{otherwise}")
        return known
    notes.append(
        f"model: put the config.json of {named or 'your model'} next to this file, and set launch.model_path "
        "to the model's folder"
    )
    return {"from": "config.json"}


def _traffic_of(line: Line, longest: int, notes: list[str]) -> dict[str, Any]:
    """Returns [traffic] from the load test in the line, or a default. Without a request rate, all prompts are sent at
    once. `longest`: the server's maximum tokens per request, 0 if unknown."""
    texts = {flag: "".join(words) for flag, words in line.flags.items()}
    load = {field: int(texts[flag]) for flag, field in _LOAD.items() if texts.get(flag, "").isdigit()}
    rate = texts.get("--request-rate", "inf")
    if not {"input_len", "output_len"} <= load.keys():
        notes.append(REVIEW_LOAD)
        asked, answered = GUESSED["input_len"], GUESSED["output_len"]
        if 0 < longest < asked + answered:
            asked = longest * asked // (asked + answered)
            answered = longest - asked
        load = {"input_len": asked, "output_len": answered, **load}
    if re.fullmatch(r"\d+(\.\d+)?", rate) and float(rate) > 0:
        return {"rate": float(rate), **{name: n for name, n in load.items() if name != "concurrency"}}
    return {"concurrency": load.get("requests", GUESSED["concurrency"]), **load}


def line_problems(job: Job) -> Iterator[str]:
    """Yields a sentence for each reason why the line cannot be used."""
    try:
        flags = given_flags(job)
    except AutoscoutError as error:
        yield str(error)
        return
    if not flags and not model_named(current_launch.line_of(job)):
        yield "launch.current serves no model; write the whole line of `vllm serve`, without variables"
    if "--config" in flags:
        yield f"launch.current: write the settings of {' '.join(flags['--config'])} as flags (`autoscout init` does)"
    yield from tier_problems(job, flags)
    single = "".join(flags.get("--dtype", ["auto"])) in ("float", "float32")
    if "--dtype" in flags and "auto" not in flags["--dtype"] and single != (job.model.dtype == "fp32"):
        yield f"launch.current has --dtype {flags['--dtype'][0]}, but model.dtype is '{job.model.dtype}'"


def launched(space: Space, job: Job) -> tuple[Configuration, list[str]]:
    """Returns (the valid configuration nearest to the line's, notes for the user)."""

    arguments_of = engine_arguments_of(job)

    def mapped(configuration: Configuration) -> Mapping[str, object]:
        found: dict[str, object] = {}
        for flag, value in flags(arguments_of(configuration)).items():
            found |= {flag: value} if value is True else spread(flag, str(value))
        return _not_placing(found)

    given = _not_placing(given_flags(job))
    return current_launch.configuration(space, given, mapped, batches(space.attributes, 1))


def _not_placing(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {flag: value for flag, value in flags.items() if flag not in _PLACING}
