"""Several servers behind a router (the knob `router`): each engine a `vllm serve` of its own, vllm-router before them.
Exported, not started by sessions.
"""

import shlex
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from autoscout.targets.launch import Launch, words
from autoscout.targets.vllm.arguments import engine_size
from kb.records import AutoscoutError, Configuration

KNOB, ENGINE = "router", "engine"
PORT, ENGINE_PORT = 8000, 8100
_SCRIPT = "fleet.sh"
_ROUTERS = Path(__file__).with_name("routers.toml")
_OF_SEVERAL = ("--data-parallel-size", "--data-parallel-size-local", "--data-parallel-backend")


def policy(configuration: Configuration) -> dict[str, Any]:
    """The policy by which requests are assigned to engines."""
    return tomllib.loads(_ROUTERS.read_text())[str(configuration.knobs.get(KNOB, ENGINE))]


def is_routed(configuration: Configuration) -> bool:
    return configuration.knobs.get(KNOB, ENGINE) != ENGINE


def launch(configuration: Configuration, found: Launch) -> Launch:
    """The launch of a script that starts all servers and the router, and ends them all. `found`: that of `vllm serve`
    with all engines. Errors: AutoscoutError (exit 2) for engines on several nodes."""
    if found.nodes > 1:
        raise AutoscoutError(
            f"{KNOB} = {configuration.knobs[KNOB]}: the engines of {found.nodes} nodes are started there one by one; "
            f"export a configuration of one node, and name all servers in --worker-urls",
            2,
        )
    engine = msgspec.structs.replace(
        found,
        arguments={flag: value for flag, value in found.arguments.items() if flag not in _OF_SEVERAL},
        devices=[engine_size(configuration)],
    )
    count = int(configuration.knobs["dp"])
    router = [policy(configuration)["exports"], "--policy", str(configuration.knobs[KNOB])]
    urls = [f"http://127.0.0.1:{ENGINE_PORT + i}" for i in range(count)]
    script = [
        "#!/bin/bash",
        f"# {count} servers, and a router that deals requests to them; ask the router, on port {PORT}",
        "trap 'kill $(jobs -p) 2>/dev/null' EXIT",
        *(f"{_line(engine, i)} &" for i in range(count)),
        f"{shlex.join([*router, '--host', '127.0.0.1', '--port', str(PORT), '--worker-urls', *urls])} &",
        "wait -n  # one that ends ends all",
    ]
    return msgspec.structs.replace(
        found,
        program=["bash", _SCRIPT],
        arguments={},
        files={_SCRIPT: "\n".join(script) + "\n"},
        missing=[
            *found.missing,
            "the package vllm-router where the router runs, in containers an image of it in place of ROUTER_IMAGE",
        ],
        engine=engine,
        engines=count,
        router=router,
    )


def _line(engine: Launch, number: int) -> str:
    size = engine.devices[0]
    own = f"CUDA_VISIBLE_DEVICES={','.join(str(number * size + i) for i in range(size))} " if engine.on_gpus else ""
    said = [word for pair in words(engine) if pair[0] not in ("--host", "--port") for word in pair]
    place = ["--host", "127.0.0.1", "--port", str(ENGINE_PORT + number)]
    return own + shlex.join([*engine.program, *place, *said])
