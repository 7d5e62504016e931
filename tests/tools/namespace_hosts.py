"""Simulated hosts in Linux namespaces: each has its own network, hostname, processes and mounts, and an sshd.

    python tests/tools/namespace_hosts.py [--hosts 2] [--private FOLDER] [--] COMMAND…    COMMAND runs on h0

h0, h1, … know each other by name and can log in to each other as root. `--private`: a folder that they do not share.
Needs root, iproute2, util-linux and openssh-server. When a host's first process ends, the kernel ends all of its
processes and namespaces; all first processes end with this process."""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_SSHD, _SSH = "/usr/sbin/sshd", "/usr/bin/ssh"
_LIMIT_S = 20.0
_TIED = ("setpriv", "--pdeathsig", "KILL")  # ends a host together with this process
_UNSHARE = ("unshare", "-n", "-m", "-u", "-p", "-f")
_SSHD_CONFIG = """Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
"""
_SSH_CONFIG = """Host h*
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""
# The first process of a host. It waits for its network, which is created from outside.
_BEGIN = """set -e
hostname {name}
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/ssh_config /etc/ssh/ssh_config
{private}
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up
ip addr add {address}/24 dev eth0
ip link set eth0 up
exec {sshd} -D -f {folder}/sshd_config
"""


def missing() -> str:
    """ "", or the reason why such hosts cannot be created here."""
    if os.geteuid() != 0:
        return "needs root"
    for program in ("setpriv", "unshare", "nsenter", "ip", _SSH, _SSHD):
        if shutil.which(program) is None:
            return f"needs {program} (apt-get install iproute2 util-linux openssh-server openssh-client)"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"the kernel gives no namespaces: {tried.stderr.strip()}"


class Hosts:
    """`pids`: of each host's first process, outside of its namespace."""

    def __init__(self, folder: Path, count: int, private: str, size: str) -> None:
        self._folder, self._private, self._size = folder, private, size
        self.names = [f"h{i}" for i in range(count)]
        self.pids: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._written()
        hub = self._begun("exec sleep infinity")
        self.bin = folder / "bin"  # contains an `ssh` that connects from the first host
        self.bin.mkdir()
        self._in(hub, "ip", "link", "add", "br0", "type", "bridge")
        self._in(hub, "ip", "link", "set", "br0", "up")
        self._hub = hub
        self.pids = [self._host(i) for i in range(count)]
        ssh = self.bin / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec nsenter -t {self.pids[0]} -n -m -u -- {_SSH} "$@"\n')
        ssh.chmod(0o755)

    def command(self, host: int, *words: str) -> list[str]:
        """The command that runs `words` on a host without ssh."""
        return ["nsenter", "-t", str(self.pids[host]), "-n", "-m", "-u", "-p", "--", *words]

    def kill(self, host: int) -> None:
        """Simulates a power failure; the host can be restarted."""
        os.kill(self.pids[host], signal.SIGKILL)

    def start_again(self, host: int) -> None:
        self.pids[host] = self._host(host)

    def pull(self, host: int, out: bool = True) -> None:
        """Disconnects a host's network cable (or reconnects it): packets are lost silently."""
        self._in(self._hub, "ip", "link", "set", f"v{host}", "down" if out else "up")

    def processes(self, host: int) -> list[str]:
        """Command lines of a host's processes, without sshd."""
        said = subprocess.run(self.command(host, "ps", "axo", "args="), capture_output=True, text=True).stdout
        return [line for line in said.splitlines() if not line.startswith(("sshd:", "ps axo"))]

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def wait_for(self, host: int) -> None:
        """Waits until a host's sshd answers."""
        until = time.monotonic() + _LIMIT_S
        while subprocess.run(self.command(host, _SSH, self.names[host], "true"), capture_output=True).returncode:
            if time.monotonic() > until:
                raise RuntimeError(f"{self.names[host]} does not start")
            time.sleep(0.05)

    def _host(self, i: int) -> int:
        private = f"mkdir -p {self._private} && mount -t tmpfs -o size={self._size} tmpfs {self._private}"
        script = _BEGIN.format(
            name=self.names[i],
            folder=self._folder,
            address=f"10.77.0.{i + 1}",
            sshd=_SSHD,
            private=private if self._private and i else "",
        )
        pid = self._begun(script)
        # the same address after a restart
        peer = ("name", "eth0", "address", f"02:00:00:00:00:{i + 1:02x}", "netns", str(pid))
        self._in(self._hub, "ip", "link", "add", f"v{i}", "type", "veth", "peer", *peer)
        self._in(self._hub, "ip", "link", "set", f"v{i}", "master", "br0", "up")
        return pid

    def _begun(self, script: str) -> int:
        """Starts a host; returns the pid of its first process, outside of its namespace."""
        process = subprocess.Popen(
            [*_TIED, *_UNSHARE, "--mount-proc", "--kill-child", "bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=open(self._folder / "log", "ab"),  # noqa: SIM115 - the child's
        )
        self._processes.append(process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until = time.monotonic() + _LIMIT_S
        while not (found := children.read_text().split()):
            if time.monotonic() > until or process.poll() is not None:
                raise RuntimeError(f"no namespace: {(self._folder / 'log').read_text()}")
            time.sleep(0.01)
        return int(found[0])

    def _in(self, pid: int, *words: str) -> None:
        """Runs `ip` in the network namespace of a process."""
        subprocess.run(["nsenter", "-t", str(pid), "-n", "--", *words], check=True, capture_output=True)

    def _written(self) -> None:
        folder = self._folder
        for name in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        shutil.copy(folder / "key.pub", folder / "authorized")
        (folder / "sshd_config").write_text(_SSHD_CONFIG.format(folder=folder))
        (folder / "ssh_config").write_text(_SSH_CONFIG.format(folder=folder))
        lines = ["127.0.0.1 localhost", *(f"10.77.0.{i + 1} {name}" for i, name in enumerate(self.names))]
        (folder / "hosts").write_text("\n".join(lines) + "\n")


@contextlib.contextmanager
def hosts(count: int = 2, private: str = "", size: str = "1g") -> Iterator[Hosts]:
    """`private`: a folder of this `size` that every host except the first has separately."""
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        found = Hosts(Path(folder), count, private, size)
        try:
            for i in range(count):
                found.wait_for(i)
            yield found
        finally:
            found.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--private", default="")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if why := missing():
        print(why, file=sys.stderr)
        return 1
    with hosts(asked.hosts, asked.private) as found:
        return subprocess.run(found.command(0, *[w for w in asked.command if w != "--"])).returncode


if __name__ == "__main__":
    sys.exit(main())
