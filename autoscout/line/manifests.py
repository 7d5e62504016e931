"""Extracts a container's launch line and GPUs from a Kubernetes manifest, a compose file or a SkyPilot task."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from autoscout.job.device_names import stem_of
from autoscout.job.yaml_text import documents
from autoscout.line import nested
from autoscout.line.containers import SERVER_IMAGE, STARTS_SERVER
from autoscout.line.visible_gpus import named
from kb.records import AutoscoutError

_SHELLS = ("sh", "bash")
_PROGRAMS = ("vllm", "python", "python3", "numactl", "env", *_SHELLS)
_SERVES = re.compile(r"vllm|sglang|trtllm")
_VARIABLE = re.compile(r"\$\((\w+)\)")  # a reference to a variable, $(NAME), which Kubernetes expands
# what compose expands before the container starts: a variable that need not be set, and its default
_DEFAULT = re.compile(r"(?<!\$)\$\{\w+:?-([^${}]*)\}")


# Resource names of GPUs in Kubernetes device plugins, and in custom resources of inference platforms.
_LIMIT = re.compile(r"((nvidia|amd)\.com/)?gpu")
_NO_GPU = re.compile(r"\.\w+/(tpu|npu|ascend\w*|gaudi\w*|neuron\w*)", re.IGNORECASE)
_PRODUCT = re.compile(r"\.com/(gpu\.product(-name)?|gke-accelerator)$")  # node labels that name the GPU product
_INSTANCE = re.compile(r"kubernetes\.io/instance-type$")  # node label with a cloud's instance type
# keys of the replica groups in resources of Kubeflow's training operators and of Ray
_GROUPS = re.compile(r"(ReplicaSpecs|GroupSpecs?)$")
# NVIDIA Dynamo's workers are started by modules of its own with the engine's arguments
_BY_MODULE = {"dynamo.vllm": ["vllm", "serve"], "dynamo.sglang": ["python3", "-m", "sglang.launch_server"]}
_BY_CHART = {"vllmServe": ["vllm", "serve"]}  # llm-d's Helm values name the command only indirectly, as `modelCommand`


class Container(NamedTuple):
    """What a container runs: either a shell `script` or the `words` of a command, with the environment `variables`.

    `gpus`: number of requested GPUs, 0 if this number is unknown, None if no GPUs are requested. `kind`: the GPU model,
    "" if unknown. `nodes`: number of pods or machines with GPUs that work together, 0 if unknown. `others`: number of
    further containers that serve a model. `no_gpu`: name of a requested accelerator that is not a GPU."""

    image: str
    words: list[str]
    script: str
    variables: dict[str, str]
    gpus: int | None = None
    kind: str = ""
    nodes: int = 0
    others: int = 0
    no_gpu: str = ""

    @property
    def of_group(self) -> dict[str, str]:
        """The variables that SkyPilot, or a LeaderWorkerSet, sets in the first of the nodes."""
        nodes = str(self.nodes or 1)
        return {
            "SKYPILOT_NUM_NODES": nodes,
            "SKYPILOT_NUM_GPUS_PER_NODE": str(self.gpus or ""),
            "LWS_GROUP_SIZE": nodes,
            "LWS_WORKER_INDEX": "0",
        }


def container_in(text: str, where: str) -> Container:
    """Returns the best matching container: the first that serves a model on GPUs, else the first that serves a model,
    else the first with a command. Errors: AutoscoutError (exit 2)."""
    try:
        read = [_of_chart(_with_defaults(each) if _is_compose(each) else each) for each in documents(text)]
        found = [
            _container(each)._replace(
                gpus=_gpus(each), kind=_product(document), nodes=_pods(document), no_gpu=_no_gpu(each)
            )
            for document in read
            for each in _containers(document)
        ]
        found += [task for document in read if (task := _of_a_task(document, found))]
        found += [server for document in read for server in _of_ray_serve(document)]
    except ValueError as error:  # an invalid date, or a command with an unclosed quote
        raise AutoscoutError(f"{where}: cannot be read ({error})", 2) from error
    except RecursionError:
        raise AutoscoutError(f"{where}: the file is nested too deeply", 2) from None
    if other := next((each.no_gpu for each in found if each.no_gpu), ""):
        raise AutoscoutError(f"{where}: a container requests {other}, but AutoScout tunes only GPUs and CPU ranks", 2)
    found = [each for each in found if each.words or each.script]
    if not found and (loose := next((words for each in read for words in _loose(each)), [])):
        raise AutoscoutError(
            f"{where}: it has arguments but no image, so the cluster decides which program gets them; {_give(loose)}",
            2,
        )
    if not found:
        raise AutoscoutError(
            f"{where}: no container has a command or args; give the command: autoscout init -- COMMAND", 2
        )
    started = [each for each in found if each.script or not each.words[0].startswith("-")]
    if not started:
        raise AutoscoutError(
            f"{where}: its container has only arguments, and the image {found[0].image} decides which program gets "
            f"them; {_give(found[0].words)}",
            2,
        )
    serve = [each for each in started if _SERVES.search(f"{each.image} {each.script} {' '.join(each.words)}")]
    on_gpus = [each for each in serve if each.gpus is not None]  # excludes routers, which need no GPU
    servers = [each for each in on_gpus or serve if STARTS_SERVER.search(f"{each.script} {' '.join(each.words)}")]
    return [*on_gpus, *serve, *started][0]._replace(others=max(len(servers) - 1, 0))


def _give(words: list[str]) -> str:
    return f"give the line: autoscout init -- PROGRAM {shlex.join(words)[:100]}"


def _loose(document: Any) -> Iterator[list[str]]:
    """Yields the words of each `args` list in an object without an `image`."""
    if isinstance(document, dict) and "image" not in document and isinstance(document.get("args"), list):
        yield _words(document["args"])
    for part in _parts(document):
        yield from _loose(part)


def _parts(inside: Any) -> Iterable[Any]:
    """Returns the values of a mapping or of a list; () for a scalar."""
    return inside.values() if isinstance(inside, dict) else inside if isinstance(inside, list) else ()


def _of_chart(document: Any) -> Any:
    """Returns the values of llm-d's Helm chart with the command that the chart would generate added; any other document
    unchanged."""
    model = nested.at(document, "modelArtifacts.name")
    for section in document.values() if model else ():
        for spec in nested.at(section, "containers") or ():
            if command := _BY_CHART.get(spec.get("modelCommand")):
                tensor = nested.at(section, "parallelism.tensor")
                spec["command"] = [*command, model, *(["--tensor-parallel-size", tensor] if tensor else [])]
    return document


def _of_a_task(document: Any, found: list[Container]) -> Container | None:
    """Returns the command of a SkyPilot task, or of a RayJob's entry point with the GPUs of its cluster's containers.
    None for any other document."""
    if isinstance(script := nested.at(document, "spec.entrypoint"), str):
        gpus = next((each for each in found if each.gpus), None)
        return gpus._replace(script=script) if gpus else Container("", [], script, {})
    if not isinstance(script := nested.at(document, "run"), str) or isinstance(document.get("jobs"), dict):
        return None
    asked = _accelerators(nested.at(document, "resources.accelerators"))
    gpus, kind = asked[0][1] if asked else None, asked[0][0] if len(asked) == 1 else ""
    return Container("", [], script, _variables(document.get("envs")), gpus, kind, document.get("num_nodes", 1))


def _of_ray_serve(document: Any) -> Iterator[Container]:
    """Yields `vllm serve` with the settings of each model of Ray Serve's configuration, alone or in a RayService."""
    if isinstance(text := nested.at(document, "spec.serveConfigV2"), str):
        document = next(iter(documents(text)), None)
    for model in (each for name, value in _pairs(document) if name == "llm_configs" for each in value or ()):
        if isinstance(model, dict) and isinstance(source := _source(model), str):
            settings = (model.get("engine_kwargs") or {}).items()
            words = [word for name, value in settings for word in _flag(f"--{name.replace('_', '-')}", value)]
            kind = str(model.get("accelerator_type") or "")
            yield Container("", ["vllm", "serve", source, *words], "", {}, 0 if kind else None, kind)


def _source(model: dict[str, Any]) -> Any:
    loading = model.get("model_loading_config") or {}
    return loading.get("model_source") or loading.get("model_id")


def _flag(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    return [flag, json.dumps(value) if isinstance(value, dict | list) else str(value)]


def _accelerators(asked: Any) -> list[tuple[str, int]]:
    """Returns (GPU model, count) for each accelerator that a SkyPilot task accepts; [] for none. The field can be NAME,
    NAME:COUNT, a list of these, or a mapping NAME → COUNT; a missing count means 1."""
    if isinstance(asked, dict):
        asked = [kind if count is None else f"{kind}:{count}" for kind, count in asked.items()]
    parts = (str(each).partition(":") for each in ([asked] if isinstance(asked, str) else asked or ()))
    return [(kind, int(count or 1)) for kind, _, count in parts]


def _containers(document: Any, around: Any = None) -> Iterator[dict[str, Any]]:
    """Yields the containers of a document. `around`: the enclosing object's resources, for containers without any."""
    if isinstance(document, dict):
        around = document.get("resources", around)
        if "image" in document:
            yield {"resources": around, **document}
    for part in _parts(document):
        yield from _containers(part, around)


def _container(spec: dict[str, Any]) -> Container:
    image = str(spec["image"])
    variables = _variables(spec.get("env") or spec.get("environment") or {})
    if shown := next((ids for device in _devices(spec) if (ids := device.get("device_ids"))), []):
        own = named(variables.get("CUDA_VISIBLE_DEVICES", ""))  # counted among the container's devices
        chosen = [str(shown[int(i)]) if i.isdecimal() and int(i) < len(shown) else i for i in own]
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(chosen or map(str, shown))
    args, first = _words(spec.get("args")), _words(spec.get("entrypoint"))
    command = [*first, *_words(spec.get("command")), *args]
    words = [_VARIABLE.sub(lambda v: variables.get(v[1], v[0]), word) for word in command]
    if len(words) > 2 and words[0].rpartition("/")[2] in _SHELLS and words[1] in ("-c", "-lc"):
        return Container(image, [], words[2], variables)
    # Without a command, Kubernetes passes `args` to the image's entry point. Compose passes its `command` to the entry
    # point.
    if len(words) > 2 and words[1] == "-m" and words[2] in _BY_MODULE:
        return Container(image, [*_BY_MODULE[words[2]], *words[3:]], "", variables)
    by_image = SERVER_IMAGE.search(image) and not (words and words[0].rpartition("/")[2] in _PROGRAMS)
    return Container(image, ["vllm", "serve", *words] if by_image else words, "", variables)


def _is_compose(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("services"), dict)


def _with_defaults(inside: Any) -> Any:
    """Returns a part of a compose file with the default in place of each variable that has one."""
    if isinstance(inside, dict):
        return {name: _with_defaults(value) for name, value in inside.items()}
    if isinstance(inside, list):
        return [_with_defaults(value) for value in inside]
    return _DEFAULT.sub(r"\1", inside) if isinstance(inside, str) else inside


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return shlex.split(value)
    return [str(word) for word in value] if isinstance(value, list) else []


def _variables(declared: Any) -> dict[str, str]:
    """Returns the variables with literal values, without references to secrets."""
    if isinstance(declared, dict):
        return {str(name): str(value) for name, value in declared.items() if value is not None}
    found: dict[str, str] = {}
    for each in declared if isinstance(declared, list) else ():
        if isinstance(each, dict) and {"name", "value"} <= each.keys():
            found[str(each["name"])] = str(each["value"])
        elif isinstance(each, str):
            name, _, value = each.partition("=")
            found[name] = value
    return found


def _gpus(container: dict[str, Any]) -> int | None:
    """Returns the number of requested GPUs, from Kubernetes' limits or from a compose file's devices, `gpus` or
    `runtime`. None if no GPU is requested."""
    counts = [value for name, value in _pairs(container.get("resources")) if _LIMIT.fullmatch(name)]
    asked = container.get("gpus")
    plain = asked if isinstance(asked, list) else [asked] if isinstance(asked, str | int) else []
    counts += [each for each in plain if not isinstance(each, dict)]
    for device in _devices(container):
        ids = device.get("device_ids")
        counts.append(len(ids) if isinstance(ids, list) else device.get("count", "all"))
    if not counts:
        return 0 if container.get("runtime") == "nvidia" else None
    return int(counts[0]) if str(counts[0]).isdecimal() else 0


def _devices(container: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the requests for GPUs in a compose file's `gpus` or reserved devices."""
    found = container.get("gpus") or _reserved(container)
    return [
        each
        for each in (found if isinstance(found, list) else ())
        if isinstance(each, dict) and ("gpu" in str(each.get("capabilities", "gpu")) or each.get("driver"))
    ]


def _no_gpu(container: dict[str, Any]) -> str:
    return next((name for name, _ in _pairs(container.get("resources")) if _NO_GPU.search(name)), "")


def _reserved(container: dict[str, Any]) -> Any:
    return next((value for name, value in _pairs(container.get("deploy")) if name == "devices"), [])


def _product(document: Any) -> str:
    labels = [*_pairs(document), *_chosen(document)]
    products = [str(value) for name, value in labels if _PRODUCT.search(name)]
    instances = (str(value) for name, value in labels if _INSTANCE.search(name))
    return next(iter(products or filter(stem_of, instances)), "")


def _chosen(inside: Any) -> Iterator[tuple[str, Any]]:
    """Yields (label, value) for the node labels that the affinity requires."""
    if isinstance(inside, dict) and isinstance(inside.get("values"), list) and "key" in inside:
        yield from ((str(inside["key"]), value) for value in inside["values"])
    for part in _parts(inside):
        yield from _chosen(part)


def _pods(document: Any) -> int:
    """Returns the number of pods with GPUs in all replica groups of a training operator, or in one group of a
    LeaderWorkerSet; 0 if there is no group."""
    if (group := nested.at(document, "spec.leaderWorkerTemplate")) is not None:
        worker, size = group.get("workerTemplate"), int(group.get("size", 1))
        pods = [group.get("leaderTemplate", worker), *[worker] * (size - 1)]
        return sum(any(_gpus(each) for each in _containers(pod)) for pod in pods)
    named = [value for name, value in _pairs(document) if _GROUPS.search(name)]
    groups = [*(g for each in named for g in (each if isinstance(each, list) else [each, *each.values()]))]
    groups = [g for g in groups if isinstance(g, dict) and "template" in g]
    return sum(int(g.get("replicas", 1)) for g in groups if any(_gpus(each) for each in _containers(g)))


def _pairs(inside: Any) -> Iterator[tuple[str, Any]]:
    """Yields (key, value) for every key at any depth."""
    for name, value in inside.items() if isinstance(inside, dict) else ():
        yield str(name), value
    for part in _parts(inside):
        yield from _pairs(part)
