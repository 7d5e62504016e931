"""The server's flags in a user's serve line, by their long names and with a flag for each field of a nested setting."""

import functools
import json
import re

from autoscout.line.containers import SERVER_IMAGE
from autoscout.line.kinds import arguments
from autoscout.line.launch_line import Line
from autoscout.targets.current_launch import line_of
from kb import door
from kb.records import AutoscoutError, Job

MODULE = "vllm.entrypoints.openai.api_server"  # run as `python -m …`
# Short or alternative flags → long names, from vllm/engine/arg_utils.py, 0.32.0 (for -O: utils/argparse_utils.py).
_ALIASES = {
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
    "-cc": "--compilation-config",
    "-dc": "--diffusion-config",
    "-dcp": "--decode-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpa": "--data-parallel-address",
    "-dpb": "--data-parallel-backend",
    "-dpe": "--data-parallel-external-lb",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpl": "--data-parallel-size-local",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-dpn": "--data-parallel-rank",
    "-dpp": "--data-parallel-rpc-port",
    "-dpr": "--data-parallel-start-rank",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-O": "--optimization-level",
    "-pcp": "--prefill-context-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
    # vLLM has both a nested field and a flag for these settings, but accepts only one of them at a time.
    "--attention-config.backend": "--attention-backend",
    "--compilation-config.cudagraph_capture_sizes": "--cudagraph-capture-sizes",
    "--compilation-config.max_cudagraph_capture_size": "--max-cudagraph-capture-size",
}
# prefixes of flags without a value
SWITCHES = ("--enable-", "--disable-", "--no-", "--trust-", "--enforce-", "--async-")
_LEVEL = re.compile(r"^-O=?(\d)$")
# flags whose value may be written as 32k or 20G
_COUNTS = ("--max-model-len", "--max-num-batched-tokens", "--kv-cache-memory-bytes")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_EXPONENTS = {"k": 1, "m": 2, "g": 3, "t": 4}


def begins(line: Line) -> int | None:
    """Returns the index of the first word of the server, after `vllm serve`, its older module or its image; None if the
    line starts no server."""
    for i, word in enumerate(line.words):
        if line.names[i : i + 2] == ("vllm", "serve"):
            return i + 2
        if word == MODULE or SERVER_IMAGE.search(word):
            return i + 1
    return None


def model_named(line: Line) -> str:
    """Returns the model that a line serves; "" if it names none."""
    start = begins(line)
    first = "" if start is None else "".join(line.words[start : start + 1])
    return first if first and not first.startswith("-") else "".join(flags_of(line).get("--model", [])[:1])


def flags_of(line: Line) -> dict[str, list[str]]:
    """Returns long flag name → values as written, for the server's flags. Flags of a container or launcher are not
    included."""
    own = line.of(_LEVEL.sub(r"--optimization-level=\1", word) for word in line.words[begins(line) or 0 :])
    found: dict[str, list[str]] = {}
    for flag, values in own.flags.items():
        name = _long(flag)
        # before vLLM 0.9, a switch could have a value
        if name.startswith(SWITCHES) and values and values[0].lower() in ("true", "false"):
            name = name if values[0].lower() == "true" else f"--no-{name[2:]}"
            values = values[1:]
        several = values[0].split(",") if name.endswith("+") and values else values
        field = several is not values and "." in name
        found[name.removesuffix("+")] = [json.dumps(several)] if field else several
    return found


def given_flags(job: Job) -> dict[str, list[str]]:
    """Returns the flags in the job's current line; {} if it has none. Errors: AutoscoutError (exit 2)."""
    return flags_in(line_of(job))


def flags_in(line: Line) -> dict[str, list[str]]:
    """Like `flags_of`, with a flag for each field of a nested setting, and one spelling for equal values. Errors:
    AutoscoutError (exit 2) for a setting whose JSON is invalid."""
    found: dict[str, list[str]] = {}
    for flag, words in flags_of(line).items():
        alone = len(words) == 1
        for name, value in spread(flag, words[0]).items() if alone else ():
            known = _ALIASES.get(name, name)
            found[known] = _listed(value) if known != name else [_plain(known, value)]
        if not alone:
            found[flag] = words
    return found


def spread(flag: str, text: str) -> dict[str, str]:
    """Splits a flag with a JSON value into equivalent flags, one per field. Errors: AutoscoutError (exit 2) for invalid
    JSON."""
    if not text.startswith("{") or text.startswith("{{"):  # {{ … }} is a placeholder of a template
        return {flag: text}
    try:
        fields = door.parsed_json(text)
    except ValueError as error:
        shown = door.shown(" ".join(text.split()))
        raise AutoscoutError(f"launch.current: {flag} {shown} is not JSON: {error}", 2) from error
    return {f"{flag}.{name}": value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


def flag_of(setting: str) -> str:
    """Returns the flag of an engine argument or of its field (`compilation_config.cudagraph_mode`)."""
    name, dot, field = setting.partition(".")
    return f"--{name.replace('_', '-')}{dot}{field}"


def setting_of(flag: str) -> str:
    """Returns the setting of a flag, without the `no-` that disables a switch; the inverse of flag_of()."""
    name, dot, field = flag.removeprefix("--").removeprefix("no-").partition(".")
    return f"{name.replace('-', '_')}{dot}{field}"


def count_of(text: str) -> int | None:
    """Parses an integer like vLLM, also 32k (32,000) and 32K (32,768); None for other text."""
    if text.isdigit():
        return int(text)
    if not (found := _COUNT.fullmatch(text)):
        return None
    base = 1000 if found[2].islower() else 1024
    return int(float(found[1]) * base ** _EXPONENTS[found[2].lower()])


def _long(flag: str) -> str:
    name, dot, field = flag.partition(".")
    if name == "-O" and dot:  # -O.FIELD, which releases before 0.12 accept
        name = "-cc"
    known = f"{_ALIASES.get(name) or _whole(name.replace('_', '-'))}{dot}{field}"
    bare = known.removesuffix("+")  # elements of a list, as in `--x.y+ 1,2`
    return f"{_ALIASES.get(bare, bare)}{known[len(bare) :]}"


@functools.cache
def _whole(flag: str) -> str:
    """Returns the name of an abbreviated flag, which argparse accepts if it begins only one name. Names that not every
    release has are not considered: the flag may be one that a different release has."""
    known = arguments("vllm")
    if flag in known or not flag.startswith("--"):
        return flag
    longer = [name for name in known if name.startswith(flag)]
    return longer[0] if len(longer) == 1 and not known[longer[0]].since else flag


def _listed(text: str) -> list[str]:
    """Converts a field's JSON value to the words that follow the field's flag."""
    value = door.parsed_json(text) if text.startswith("[") else text
    return [str(each) for each in value] if isinstance(value, list) else [text]


def _plain(flag: str, text: str) -> str:
    """Returns the canonical spelling of a value."""
    if flag in _COUNTS:
        return str(count_of(text) or text)
    if flag == "--kv-cache-dtype" and text == "fp8_e4m3":
        return "fp8"
    if flag == "--speculative-config.method" and text.endswith("_mtp"):  # a model's own name for multi-token prediction
        return "mtp"
    return text
