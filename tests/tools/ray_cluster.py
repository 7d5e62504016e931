"""A Ray cluster of two nodes, each a host of namespaces (namespace_hosts.py).

    python tests/tools/ray_cluster.py PYTHON [--] COMMAND…    COMMAND runs on the first node, with RAY_ADDRESS

PYTHON is an interpreter that has ray. Everything ends with this process.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import namespace_hosts

_LIMIT_S = 120.0
_PORT = 6379


@contextlib.contextmanager
def cluster(python: str, cpus: int = 2) -> Iterator[namespace_hosts.Hosts]:
    """Its nodes have so many CPUs each."""
    ray = str(Path(python).parent / "ray")
    with namespace_hosts.hosts(2) as hosts:
        log = open(hosts.bin.parent / "ray.log", "wb")  # noqa: SIM115 - the nodes'
        common = ["env", "RAY_USAGE_STATS_ENABLED=0", f"TMPDIR={hosts.bin.parent}", ray, "start", "--block"]
        common += [f"--num-cpus={cpus}", "--object-store-memory=100000000", "--disable-usage-stats"]
        head = ["--head", f"--port={_PORT}", "--node-ip-address=10.77.0.1", "--include-dashboard=false"]
        head += [f"--temp-dir={hosts.bin.parent}/ray"]
        nodes = [subprocess.Popen(hosts.command(0, *common, *head), stdout=log, stderr=log)]
        worker = [f"--address=10.77.0.1:{_PORT}", "--node-ip-address=10.77.0.2"]
        until = time.monotonic() + _LIMIT_S
        asked = [
            python,
            "-c",
            f"import ray; ray.init('10.77.0.1:{_PORT}', logging_level='ERROR'); print(len(ray.nodes()))",
        ]
        while True:
            said = subprocess.run(hosts.command(0, *asked), capture_output=True, text=True)
            count = int(said.stdout.strip() or 0) if said.returncode == 0 else 0
            if count == 2:
                break
            if count == 1 and len(nodes) == 1:
                nodes.append(subprocess.Popen(hosts.command(1, *common, *worker), stdout=log, stderr=log))
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
    if why := namespace_hosts.missing():
        print(why, file=sys.stderr)
        return 1
    with cluster(sys.argv[1]) as hosts:
        words = [word for word in sys.argv[2:] if word != "--"]
        return subprocess.run(hosts.command(0, "env", f"RAY_ADDRESS=10.77.0.1:{_PORT}", *words)).returncode


if __name__ == "__main__":
    sys.exit(main())
