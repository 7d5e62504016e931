"""Measures the network between hosts, with one rank on each host. The ranks form a ring and take turns to send messages
to the next rank.

    links.py EXPERIMENT.json [--leash]      with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set; needs torch

EXPERIMENT.json: {"device": "cpu" (gloo) or "cuda" (NCCL), "mib": size of a message, "times": number of messages}.
Rank R writes rank-R.json: {"gib_per_s": from rank R to R + 1, "latency_s": for a message of eight bytes}.
"""

import datetime
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import leash


def main(experiment: Path) -> None:
    import torch
    import torch.distributed as dist

    asked = json.loads(experiment.read_text())
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device: Any = "cpu"
    if asked["device"] == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    backend = "gloo" if asked["device"] == "cpu" else "nccl"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=30))
    big = torch.zeros(asked["mib"] * 2**18, device=device)
    small = torch.zeros(2, device=device)
    found = {}
    for sender in range(world):
        receiver = (sender + 1) % world
        dist.barrier()
        if rank not in (sender, receiver):
            continue
        for tensor, name in ((small, "latency_s"), (big, "gib_per_s")):
            seconds = [_there_and_back(dist, tensor, rank == sender, sender, receiver) for _ in range(asked["times"])]
            found[name] = statistics.median(seconds[1:])
        if rank == sender:
            mine = {"latency_s": found["latency_s"] / 2, "gib_per_s": asked["mib"] / 1024 * 2 / found["gib_per_s"]}
            _write(experiment.with_name(f"rank-{rank}.json"), mine)
    dist.barrier()


def _there_and_back(dist: Any, tensor: Any, sends: bool, sender: int, receiver: int) -> float:
    began = time.perf_counter()
    if sends:
        dist.send(tensor, receiver)
        dist.recv(tensor, receiver)
    else:
        dist.recv(tensor, sender)
        dist.send(tensor, sender)
    if tensor.is_cuda:
        tensor[0].item()
    return time.perf_counter() - began


def _write(path: Path, content: "dict[str, float]") -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content))
    os.replace(part, path)


if __name__ == "__main__":
    leash.die_with(os.getppid())
    if "--leash" in sys.argv:
        leash.die_with_stdin()
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
