"""Disaggregated prefill (the knob `prefill`): one server reads prompts, another answers, both `vllm serve`, with a
router between them. Exported, not started: the pair has not been run with our load yet. The KV cache is sent by NIXL;
the servers' roles are those of vLLM 0.32 (kv_connector/v1/nixl/connector.py).
"""

import shlex
from pathlib import Path
from typing import Any

import msgspec

from autoscout.targets.launch import Launch
from autoscout.targets.vllm import routed
from autoscout.targets.vllm.arguments import engine_arguments, flags, world_size
from kb.records import AutoscoutError, Configuration, Job

KNOB = "prefill"
_SCRIPT, _ROUTER = "disaggregated.sh", "router.py"
_PORT, _PREFILL_PORT, _DECODE_PORT = 8000, 8100, 8200
_SIDE_PORTS = (5600, 5700)  # first side-channel port of a server's engines, which take consecutive ports


def refused(job: Job) -> None:
    """Errors: AutoscoutError (exit 2) if a session of the job might try several servers."""
    space = job.space
    for knob, other, alone in ((KNOB, 2, 0), (routed.KNOB, "cache_aware", routed.ENGINE)):
        named = [space.fix.get(knob, alone), *space.limit.get(knob, [])]
        if knob in space.allow or any(value != alone for value in named):
            raise AutoscoutError(
                f"[space] allows {knob}, but an experiment is one server here: a fleet with its router is written "
                f"(`autoscout export JOB.toml --config {knob}={other}`) and run as a shadow, not started; drop it from "
                f"[space] to tune the others",
                2,
            )


def pair(job: Job, configuration: Configuration) -> list[dict[str, Any]]:
    """The arguments of the prefill server and of the decode server."""
    knobs, both = configuration.knobs, engine_arguments(job, configuration)
    ranks, size = int(knobs[KNOB]), int(knobs.get("prefill_tp", 1))
    engines = {"tensor_parallel_size": size, "data_parallel_size": ranks // size}
    reads = {**both, **engines, "kv_transfer_config": _role("kv_producer")}
    return [reads, {**both, "kv_transfer_config": _role("kv_consumer")}]


def lines(job: Job, configuration: Configuration, model: str) -> list[str]:
    """Shell lines that start the prefill server and the decode server."""
    ranks = int(configuration.knobs[KNOB])
    gpus = [range(ranks), range(ranks, ranks + world_size(configuration))]
    found = []
    for own, port, side, arguments in zip(
        gpus, (_PREFILL_PORT, _DECODE_PORT), _SIDE_PORTS, pair(job, configuration), strict=True
    ):
        more = [w for flag, v in flags(arguments).items() for w in ([flag] if v is True else [flag, str(v)])]
        command = ["vllm", "serve", model, "--host", "127.0.0.1", "--port", str(port), *more]
        variables = f"CUDA_VISIBLE_DEVICES={','.join(map(str, own))} VLLM_NIXL_SIDE_CHANNEL_PORT={side}"
        found.append(f"{variables} {shlex.join(command)}")
    return found


def launch(job: Job, configuration: Configuration, found: Launch) -> Launch:
    """The launch of a script that starts both servers and a router, and ends them all. `found`: the decode server's
    launch."""
    router = f"python {_ROUTER} {_PORT} {_PREFILL_PORT} {_DECODE_PORT}"
    script = [
        "#!/bin/bash",
        f"# {KNOB}: one server reads prompts, one answers; ask the router, on port {_PORT}",
        "trap 'kill $(jobs -p) 2>/dev/null' EXIT",
        *(f"{line} &" for line in [*lines(job, configuration, found.program[-1]), router]),
        "wait -n  # one that ends ends all",
    ]
    needs = "the package nixl in vLLM's environment; for many users a router of production in place of ours"
    return msgspec.structs.replace(
        found,
        program=["bash", _SCRIPT],
        arguments={},
        devices=[int(configuration.knobs[KNOB]) + world_size(configuration)],
        files={_SCRIPT: "\n".join(script) + "\n", _ROUTER: (Path(__file__).parent / _ROUTER).read_text()},
        missing=[*found.missing, needs],
    )


def one_server(found: Launch) -> None:
    """Errors: AutoscoutError (exit 2) for a pair in a format that describes one server."""
    if _SCRIPT in found.files:
        raise AutoscoutError(
            "two servers and a router go into no one file of that kind; use --format command or slurm", 2
        )


def _role(name: str) -> dict[str, str]:
    return {"kv_connector": "NixlConnector", "kv_role": name}
