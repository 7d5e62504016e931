"""A rank for tests of launchers: meets the others, writes where it was, and does what the experiment says of it."""

import json
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path


def main(experiment: Path) -> int:
    told = json.loads(experiment.read_text())
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    print(f"rank {rank} runs on {platform.node()}", flush=True)
    match told.get(str(rank)):
        case "fails":
            return 7
        case "hangs":
            subprocess.Popen(["sleep", "600"], start_new_session=True)  # a daemon, which nothing leads to
            time.sleep(600)
    meet(rank, world, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "SECRET", "CUDA_VISIBLE_DEVICES")
    said = {"host": platform.node(), **{name: os.environ.get(name) for name in names}}
    experiment.with_name(f"rank-{rank}.json").write_text(json.dumps(said))
    return 0


def meet(rank: int, world: int, address: str, port: int) -> None:
    if rank == 0:
        with socket.create_server(("", port)) as server:
            for _ in range(world - 1):
                server.accept()[0].close()
        return None
    while True:
        try:
            return socket.create_connection((address, port), timeout=5).close()
        except OSError:
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
