"""Several servers behind a router: equal engines (the knob `router`), or engines that only prefill prompts for decoding
engines (the knob `prefill`, with NixlConnector). Each server is a `vllm serve`, and vllm-router assigns requests to
servers."""

import shlex
from typing import Any

import msgspec

from autoscout.simulate.serving.router_policies import policy_of
from autoscout.targets.launch import Launch, words
from autoscout.targets.vllm.arguments import engine_arguments, engine_size, flags, world_size
from kb.records import AutoscoutError, Configuration, Job

KNOB, ENGINE, PREFILL = "router", "engine", "prefill"
PORT, ENGINE_PORT = 8000, 8100
PROGRAM, CONNECTOR = "vllm-router", "NixlConnector"
SIDE = "VLLM_NIXL_SIDE_CHANNEL_PORT"
NEEDS = {KNOB: PROGRAM, PREFILL: "nixl"}  # knob → package that configurations with this knob need
_SIDE_PORT, _SIDE_APART = 5600, 100  # first server's port; distance between servers, which need a port per engine
_SCRIPT = "fleet.sh"
_OF_SEVERAL = ("data_parallel_size", "data_parallel_size_local", "data_parallel_backend")


class FleetServer(msgspec.Struct, frozen=True):
    """A `vllm serve` process. `role`: "engine", "prefill" or "decode". `arguments`: the engine's arguments. `devices`:
    number of devices."""

    role: str
    arguments: dict[str, Any]
    devices: int


def policy(configuration: Configuration) -> dict[str, Any]:
    """Returns the configuration's routing policy."""
    return policy_of(str(configuration.knobs.get(KNOB, ENGINE)))


def is_apart(configuration: Configuration) -> bool:
    return bool(configuration.knobs.get(PREFILL))


def is_routed(configuration: Configuration) -> bool:
    return is_apart(configuration) or configuration.knobs.get(KNOB, ENGINE) != ENGINE


def devices_of(configuration: Configuration) -> int:
    """Returns the total number of devices of all servers."""
    return world_size(configuration) + int(configuration.knobs.get(PREFILL, 0))


def asked_for(job: Job) -> set[str]:
    """Returns those of the knobs KNOB and PREFILL that can make a session of the job start several servers. (PREFILL
    needs a router, too.)"""
    found, space = set[str](), job.space
    for knob, alone in ((KNOB, ENGINE), (PREFILL, 0)):
        named = [space.fix.get(knob, alone), *space.limit.get(knob, [])]
        if knob in space.allow or any(value != alone for value in named):
            found |= {knob, KNOB}
    return found


def servers(job: Job, configuration: Configuration) -> list[FleetServer]:
    """Returns the servers, in the order of their devices; a single server if no router is needed."""
    arguments = engine_arguments(job, configuration)
    if is_apart(configuration):
        ranks, size = int(configuration.knobs[PREFILL]), int(configuration.knobs.get("prefill_tp", 1))
        own = {"tensor_parallel_size": size, "data_parallel_size": ranks // size}
        reads, answers = ({"kv_connector": CONNECTOR, "kv_role": f"kv_{role}"} for role in ("producer", "consumer"))
        return [
            FleetServer("prefill", arguments | own | {"kv_transfer_config": reads}, ranks),
            FleetServer("decode", arguments | {"kv_transfer_config": answers}, world_size(configuration)),
        ]
    if not is_routed(configuration):
        return [FleetServer("engine", arguments, world_size(configuration))]
    alone = {name: value for name, value in arguments.items() if name not in _OF_SEVERAL}
    return [FleetServer("engine", alone, engine_size(configuration))] * int(configuration.knobs["dp"])


def router_words(configuration: Configuration) -> list[str]:
    """Returns the router's command, with SERVER-0, SERVER-1, … for the servers' addresses."""
    if is_apart(configuration):
        dealt = ["--policy", "round_robin", "--vllm-pd-disaggregation"]
        return [PROGRAM, *dealt, "--prefill", "SERVER-0", "--decode", "SERVER-1"]
    places = [f"SERVER-{i}" for i in range(int(configuration.knobs["dp"]))]
    return [PROGRAM, "--policy", str(configuration.knobs[KNOB]), "--worker-urls", *places]


def addressed(router: list[str], host: str, port: int, urls: list[str]) -> list[str]:
    """Returns the router's command with the router's own address and the servers' addresses filled in."""
    places = {f"SERVER-{i}": url for i, url in enumerate(urls)}
    return [*(places.get(word, word) for word in router), "--host", host, "--port", str(port)]


def launch(job: Job, configuration: Configuration, found: Launch) -> Launch:
    """Returns the launch of a script that starts and ends all servers and the router. `found`: the launch of a single
    server with all engines. Errors: AutoscoutError (exit 2) for engines on several nodes."""
    if found.nodes > 1:
        raise AutoscoutError(
            f"{KNOB} = {configuration.knobs[KNOB]}: engines on {found.nodes} nodes cannot be exported together; "
            "export a configuration for one node, start it on each node, and list all servers in the router's "
            "--worker-urls",
            2,
        )
    of_server = {
        flag: v for flag, v in found.arguments.items() if flag not in flags(engine_arguments(job, configuration))
    }
    each = [
        msgspec.structs.replace(
            found, name=one.role, arguments={**flags(one.arguments), **of_server}, devices=[one.devices]
        )
        for one in servers(job, configuration)
    ]
    router = router_words(configuration)
    needs = [f"the package {PROGRAM} where the router runs; in containers, its image instead of ROUTER_IMAGE"]
    needs += ["the package nixl in vLLM's environment"] if is_apart(configuration) else []
    if policy(configuration)["deals"] == "session":
        needs.append("the header x-session-id to your clients' requests, the same for a whole conversation")
    ports = [PORT, *(ENGINE_PORT + i for i in range(len(each)))]
    return msgspec.structs.replace(
        found,
        program=["bash", _SCRIPT],
        arguments={},
        devices=[devices_of(configuration)],
        files={_SCRIPT: script(each, router, ports)},
        missing=[*found.missing, *needs],
        servers=each,
        router=router,
    )


def script(each: list[Launch], router: list[str], ports: list[int]) -> str:
    """Returns the script's text. `ports`: the router's port, then each server's port. GPUs are assigned to the servers
    in order."""
    lines, first = [], 0
    for number, one in enumerate(each):
        count = one.devices[0]
        gpus = ",".join(str(first + i) for i in range(count))
        own = [f"CUDA_VISIBLE_DEVICES={gpus}"] if one.on_gpus else []
        own += [f"{SIDE}={_SIDE_PORT + _SIDE_APART * number}"] if "--kv-transfer-config" in one.arguments else []
        said = [word for pair in words(one) if pair[0] not in ("--host", "--port") for word in pair]
        place = ["--host", "127.0.0.1", "--port", str(ports[1 + number])]
        lines.append(" ".join([*own, shlex.join([*one.program, *place, *said])]))
        first += count
    urls = [f"http://127.0.0.1:{port}" for port in ports[1:]]
    lines.append(shlex.join(addressed(router, "127.0.0.1", ports[0], urls)))
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {len(each)} servers, and a router that assigns requests to them; send requests to the router, on "
            f"port {ports[0]}",
            "trap 'kill $(jobs -p) 2>/dev/null' EXIT",
            *(f"{line} &" for line in lines),
            "wait -n  # when one ends, all end\n",
        ]
    )
