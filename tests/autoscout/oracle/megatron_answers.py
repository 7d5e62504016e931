"""Asks Megatron-core itself, in one process: one JSON question a line in, one JSON answer a line out.

    megatron_answers.py [stand-ins] [experts]

`stand-ins`: for Transformer Engine's modules, else Megatron's own layers. `experts`: other ranks' routers are taken to
choose as this rank's does, and so the first step with ep > 1 can be asked.

A question is {"world": ranks, "rank": which one, "deep": bool, "config": what worker/train.py would get}. Groups are
made for real over torch's fake process group (collectives return at once, whatever they are given), so that any number
of ranks can be asked. A deep question also builds the model and takes one training step as that rank: errors of shapes
and schedules show, numbers mean nothing. `apart`: in a fork. The answer: {"refused": "" or the error, "phase": …}.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import contextlib
import io
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parents[3] / "autoscout" / "targets" / "megatron" / "worker"


def answer(question: dict[str, Any]) -> dict[str, str]:
    import building
    import configs
    import torch
    from megatron.core import parallel_state, tensor_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    phase = "groups"
    try:
        config = configs.read(question["config"])
        config["given"]["check_for_nan_in_loss_and_grad"] = False  # from other ranks comes whatever memory holds
        torch.distributed.init_process_group(
            "fake", store=FakeStore(), rank=question["rank"], world_size=question["world"]
        )
        parallel_state.initialize_model_parallel(**configs.groups(config["given"]))
        phase = "config"
        shape = building.transformer_config(config)
        configs.ddp(config["given"])
        configs.optimizer(config["given"], 1e-3)
        if question["deep"]:
            phase = "build"
            tensor_parallel.model_parallel_cuda_manual_seed(1234)
            device = torch.device("cpu")
            chunks, optimizer = building.build(config, shape, device)
            phase = "step"
            _step(config, chunks, optimizer, device)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"[:400], "phase": phase}
    finally:
        parallel_state.destroy_model_parallel()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    return {"refused": "", "phase": phase}


def _step(config: dict[str, Any], chunks: list[Any], optimizer: Any, device: Any) -> None:
    import train

    train._iteration(config, chunks, optimizer, device, 0, [])


def _load(stand_ins: bool) -> None:
    import train

    if not stand_ins:
        train.load("cpu")
        return
    sys.path.insert(0, str(WORKER / "shadow"))
    import cpu_shim
    import endless

    endless.end()
    cpu_shim.before_megatron()
    import stand_in_package

    stand_in_package.install("2.3.0")
    import building  # noqa: F401 - imports all of Megatron that is used

    cpu_shim.after_megatron()


def _fake_every_group() -> None:
    """Megatron asks for gloo by name for some groups, which would wait for ranks that do not exist."""
    import torch

    new_group = torch.distributed.new_group
    torch.distributed.new_group = lambda *args, **kwargs: new_group(*args, **{**kwargs, "backend": "fake"})


def main() -> None:
    sys.path.insert(0, str(WORKER))
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(io.StringIO()):
        if "experts" in sys.argv:
            sys.path.insert(0, str(WORKER / "one_device"))
            import loopback

            loopback.install()
        _load("stand-ins" in sys.argv)
        _fake_every_group()
    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        child = os.fork() if question.get("apart") else 0  # groups of a thousand ranks are never given back
        if child:
            if status := os.waitpid(child, 0)[1]:
                print(json.dumps({"refused": f"its fork ended with {status}", "phase": "lost"}), flush=True)
            continue
        with contextlib.redirect_stdout(sys.stderr):
            said = answer(question)
        print(json.dumps(said), flush=True)
        if question.get("apart"):
            os._exit(0)


if __name__ == "__main__":
    main()
