"""Runs a command on a node of a Ray cluster, as a Ray task that reserves the node's devices, with our stdin and stdout.

    ray_task.py                      → the nodes, as JSON: [{"address", "cpus", "gpus"}]
    ray_task.py ADDRESS COMMAND…

The cluster is the one at RAY_ADDRESS, or this machine's. The command's stdin and stdout are a connection to this
process, so that its stdin closes when this process ends. This script runs in AutoScout's interpreter, which needs ray.
"""

import json
import logging
import os
import secrets
import select
import socket
import subprocess
import sys
from typing import Any

_ANSWERED_S = 5.0
_HELD_S = 60.0  # seconds to wait for the node's devices


def main(argv: list[str]) -> int:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("ray: the package is not installed; run `pip install ray` in AutoScout's environment", file=sys.stderr)
        return 1
    if why := _unanswered(os.environ.get("RAY_ADDRESS", "")):
        print(f"ray: no cluster ({why})", file=sys.stderr)
        return 1
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        print(
            f"ray: no cluster ({str(error).splitlines()[0] if str(error) else type(error).__name__})", file=sys.stderr
        )
        return 1
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if not argv:
        print(json.dumps([{"address": n["NodeManagerAddress"], **_devices(n)} for n in nodes]))
        return 0
    node = next((node for node in nodes if node["NodeManagerAddress"] == argv[0]), None)
    if node is None:
        print(f"ray: no node {argv[0]}", file=sys.stderr)
        return 1
    return _run(ray, node, argv[1:])


def _unanswered(address: str) -> str:
    """The reason why no Ray cluster answers at an address; "" if one does. Checked here, because Ray itself would retry
    for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return ""
    try:
        socket.create_connection((host, int(port)), _ANSWERED_S).close()
    except OSError as error:
        return f"{address}: {error.strerror or error}"
    return ""


def _devices(node: dict[str, Any]) -> dict[str, int]:
    return {"cpus": int(node["Resources"].get("CPU", 0)), "gpus": int(node["Resources"].get("GPU", 0))}


def _run(ray: Any, node: dict[str, Any], command: list[str]) -> int:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # pyright: ignore[reportMissingImports]

    token = secrets.token_hex(16)
    ours = ray.util.get_node_ip_address()
    devices = _devices(node)
    with socket.create_server((ours, 0)) as server:
        where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        held = {"num_gpus": devices["gpus"], "num_cpus": 0 if devices["gpus"] else devices["cpus"]}
        task = ray.remote(_on_node).options(scheduling_strategy=where, max_retries=0, **held)
        running = task.remote(command, ours, server.getsockname()[1], token)
        server.settimeout(_HELD_S)
        try:
            while True:
                connection = server.accept()[0]
                if connection.recv(32, socket.MSG_WAITALL).decode(errors="replace") == token:
                    break
                connection.close()
        except TimeoutError:
            ray.cancel(running, force=True)
            print(f"ray: other Ray tasks use the devices of {node['NodeManagerAddress']}", file=sys.stderr)
            return 1
    _bridge(connection)
    connection.close()
    return 0


def _on_node(command: list[str], address: str, port: int, token: str) -> int:
    """Runs the command; called on the node. Ray gives its workers a low priority, which would distort measurements."""
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with socket.create_connection((address, port)) as connection:
        connection.sendall(token.encode())
        process = subprocess.Popen(
            command, stdin=connection.fileno(), stdout=connection.fileno(), start_new_session=True
        )
    return process.wait()


def _bridge(connection: socket.socket) -> None:
    """Passes data both ways until either side closes."""
    while True:
        ready = select.select([0, connection], [], [])[0]
        if 0 in ready:
            data = os.read(0, 2**16)
            if not data:
                return
            connection.sendall(data)
        if connection in ready:
            data = connection.recv(2**16)
            if not data:
                return
            while data:
                data = data[os.write(1, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
