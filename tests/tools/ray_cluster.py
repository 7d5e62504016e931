"""A Ray cluster whose nodes are simulated hosts (namespace_hosts.py).

    python tests/tools/ray_cluster.py [--nodes 2] [--kill NUMBER:AFTER_S] PYTHON [--] COMMAND…

COMMAND runs on the first node, with RAY_ADDRESS; PYTHON is an interpreter that has ray. `--kill`: kills a node
(numbered from 0) this long after a process of ours started on it. Everything ends with this process."""

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import namespace_hosts

_LIMIT_S = 120.0
_PORT = 6379
ADDRESS = f"10.77.0.1:{_PORT}"
_AGENT = "autoscout-"  # is in the command lines of our processes on a node


@contextlib.contextmanager
def cluster(python: str, cpus: int = 2, count: int = 2) -> Iterator[namespace_hosts.Hosts]:
    """Starts a cluster of `count` nodes with `cpus` CPUs each."""
    ray = str(Path(python).parent / "ray")
    with namespace_hosts.hosts(count) as hosts:
        log = open(hosts.bin.parent / "ray.log", "wb")  # noqa: SIM115 - the nodes'
        common = ["env", "RAY_USAGE_STATS_ENABLED=0", f"TMPDIR={hosts.bin.parent}", ray, "start", "--block"]
        common += [f"--num-cpus={cpus}", "--object-store-memory=100000000", "--disable-usage-stats"]
        head = ["--head", f"--port={_PORT}", "--node-ip-address=10.77.0.1", "--include-dashboard=false"]
        head += [f"--temp-dir={hosts.bin.parent}/ray"]
        nodes = [subprocess.Popen(hosts.command(0, *common, *head), stdout=log, stderr=log)]
        until = time.monotonic() + _LIMIT_S
        asked = [
            python,
            "-c",
            f"import ray; ray.init('10.77.0.1:{_PORT}', logging_level='ERROR'); print(len(ray.nodes()))",
        ]
        while True:
            said = subprocess.run(hosts.command(0, *asked), capture_output=True, text=True)
            there = int(said.stdout.strip() or 0) if said.returncode == 0 else 0
            if there == count:
                break
            if there == len(nodes):
                worker = [f"--address={ADDRESS}", f"--node-ip-address=10.77.0.{there + 1}"]
                nodes.append(subprocess.Popen(hosts.command(there, *common, *worker), stdout=log, stderr=log))
            if time.monotonic() > until:
                raise RuntimeError(
                    f"Ray does not start: {said.stderr[-500:]} {(hosts.bin.parent / 'ray.log').read_text()}"
                )
            time.sleep(0.5)
        try:
            yield hosts
        finally:
            for node in nodes:
                node.kill()
                node.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--kill", default="")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if why := namespace_hosts.missing():
        print(why, file=sys.stderr)
        return 1
    with cluster(asked.python, count=asked.nodes) as hosts:
        words = [word for word in asked.command if word != "--"]
        process = subprocess.Popen(hosts.command(0, "env", f"RAY_ADDRESS={ADDRESS}", *words))
        if asked.kill:
            node, _, after = asked.kill.partition(":")
            while process.poll() is None and not any(_AGENT in line for line in hosts.processes(int(node))):
                time.sleep(0.2)
            time.sleep(float(after or 0))
            print(f">>> killing h{node}", flush=True)
            hosts.kill(int(node))
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
