"""The launch line of a container in a Kubernetes manifest or a compose file, and the GPUs that it is given."""

import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from autoscout.job.yaml_text import documents
from autoscout.line.containers import SERVER_IMAGE
from kb.records import AutoscoutError

_SHELLS = ("sh", "bash")
_PROGRAMS = ("vllm", "python", "python3", "numactl", "env", *_SHELLS)
_SERVES = re.compile(r"vllm|sglang|trtllm")
_VARIABLE = re.compile(r"\$\((\w+)\)")  # as Kubernetes fills in


_LIMIT = re.compile(r"(nvidia|amd)\.com/gpu")  # as Kubernetes' device plug-ins name what they hand out
_PRODUCT = re.compile(r"\.com/gpu\.product(-name)?$")  # their labels of nodes


class Container(NamedTuple):
    """What a container runs: a `script` that a shell reads, or `words`; the variables that are said. `gpus`: how many
    it is given, 0 where it says no number, None where it asks for none; `kind`: theirs, "" if nothing says it."""

    image: str
    words: list[str]
    script: str
    variables: dict[str, str]
    gpus: int | None = None
    kind: str = ""


def container_in(text: str, where: str) -> Container:
    """The first container that serves a model, else the first that starts anything. Errors: AutoscoutError (exit 2)."""
    try:
        found = [
            _container(each)._replace(gpus=_gpus(each), kind=_product(document))
            for document in documents(text)
            for each in _containers(document)
        ]
    except ValueError as error:  # a date that is none, a command with an open quotation mark
        raise AutoscoutError(f"{where}: cannot be read ({error})", 2) from error
    except RecursionError:
        raise AutoscoutError(f"{where}: is nested too deeply", 2) from None
    found = [each for each in found if each.words or each.script]
    if not found:
        raise AutoscoutError(f"{where}: no container in it has a command or args", 2)
    return next((c for c in found if _SERVES.search(f"{c.image} {c.script} {' '.join(c.words)}")), found[0])


def _containers(document: Any) -> Iterator[dict[str, Any]]:
    inside = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    if isinstance(document, dict) and "image" in document:
        yield document
    for part in inside:
        yield from _containers(part)


def _container(said: dict[str, Any]) -> Container:
    image = str(said["image"])
    variables = _variables(said.get("env") or said.get("environment") or {})
    args, first = _words(said.get("args")), _words(said.get("entrypoint"))
    command = [*first, *_words(said.get("command")), *args]
    words = [_VARIABLE.sub(lambda v: variables.get(v[1], v[0]), word) for word in command]
    if len(words) > 2 and words[0].rpartition("/")[2] in _SHELLS and words[1] in ("-c", "-lc"):
        return Container(image, [], words[2], variables)
    # without a command the image's entry point takes the args; a compose file's command are such args
    by_image = SERVER_IMAGE.search(image) and not (words and words[0].rpartition("/")[2] in _PROGRAMS)
    return Container(image, ["vllm", "serve", *words] if by_image else words, "", variables)


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return shlex.split(value)
    return [str(word) for word in value] if isinstance(value, list) else []


def _variables(said: Any) -> dict[str, str]:
    """Those with a value of their own, not one of a secret."""
    if isinstance(said, dict):
        return {str(name): str(value) for name, value in said.items() if value is not None}
    found: dict[str, str] = {}
    for each in said if isinstance(said, list) else ():
        if isinstance(each, dict) and {"name", "value"} <= each.keys():
            found[str(each["name"])] = str(each["value"])
        elif isinstance(each, str):
            name, _, value = each.partition("=")
            found[name] = value
    return found


def _gpus(container: dict[str, Any]) -> int | None:
    """Of Kubernetes' limits, of a compose file's devices, its `gpus` or its `runtime`."""
    told = [value for name, value in _pairs(container.get("resources")) if _LIMIT.fullmatch(name)]
    asked = container.get("gpus")
    devices = [asked] if isinstance(asked, str | int) else asked or _reserved(container)
    for device in devices if isinstance(devices, list) else ():
        if not isinstance(device, dict):
            told.append(device)
        elif "gpu" in str(device.get("capabilities", "gpu")) or device.get("driver"):
            ids = device.get("device_ids")
            told.append(len(ids) if isinstance(ids, list) else device.get("count", "all"))
    if not told:
        return 0 if container.get("runtime") == "nvidia" else None
    return int(told[0]) if str(told[0]).isdecimal() else 0


def _reserved(container: dict[str, Any]) -> Any:
    return next((value for name, value in _pairs(container.get("deploy")) if name == "devices"), [])


def _product(document: Any) -> str:
    return next((str(value) for name, value in _pairs(document) if _PRODUCT.search(name)), "")


def _pairs(inside: Any) -> Iterator[tuple[str, Any]]:
    """All names with what they stand for, however deep."""
    for name, value in inside.items() if isinstance(inside, dict) else ():
        yield str(name), value
    for part in inside.values() if isinstance(inside, dict) else inside if isinstance(inside, list) else ():
        yield from _pairs(part)
