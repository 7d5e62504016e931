"""A Slurm cluster of nodes node1, node2, … with four pretended GPUs each, in one Linux namespace.

    python tests/tools/slurm_cluster.py [--nodes 2] [--kill NODE:AFTER_S] [--] COMMAND…

COMMAND runs in it, outside of any allocation. `--kill`: kills all processes of a node this long after a step started on
it.

Needs root and Debian's slurmctld, slurmd, slurm-client and munge. The cluster is invisible from outside and ends with
this process."""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PROGRAMS = ("setpriv", "unshare", "nsenter", "slurmctld", "slurmd", "srun", "munged", "mungekey")
_LIMIT_S = 60.0
_HOST = "slurmhost"
_CONF = """ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout=20
SlurmctldTimeout=20
MessageTimeout=20
KillWait=5
InactiveLimit=0
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=DEFAULT CPUs=16 RealMemory=8000 Gres=gpu:4 State=UNKNOWN
NodeName=node[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17001-1700{nodes}]
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
_BEGIN = """set -e
hostname {host}
ip link set lo up
ip link add eth0 type veth peer name far
ip addr add 10.78.0.1/24 dev eth0  # Slurm resolves nothing where there is only a loopback
ip link set eth0 up
ip link set far up
mount -t tmpfs tmpfs /run
mkdir -p /run/munge {folder}/state
mount --bind {folder}/hosts /etc/hosts
mungekey -c -k {folder}/munge.key
munged --force --key-file {folder}/munge.key --log-file {folder}/munged.log --pid-file {folder}/munged.pid \
    --seed-file {folder}/munged.seed --socket /run/munge/munge.socket.2
for i in 0 1 2 3; do mknod {folder}/nvidia$i c 1 3; done
export SLURM_CONF={folder}/slurm.conf
slurmctld
for n in $(seq {nodes}); do slurmd -N node$n; done
exec sleep infinity
"""
_RUNNING = """for p in /proc/[0-9]*; do
    if ls -l $p/fd 2>/dev/null | grep -q slurmd-{node}.log || grep -qzx SLURMD_NODENAME={node} $p/environ 2>/dev/null
    then echo ${{p#/proc/}}; fi
done"""


def missing() -> str:
    """ "", or the reason why such a cluster cannot be created here."""
    if os.geteuid() != 0:
        return "needs root"
    lacking = next((program for program in _PROGRAMS if shutil.which(program) is None), "")
    return lacking and f"needs {lacking} (apt-get install slurmctld slurmd slurm-client munge iproute2)"


class Slurm:
    def __init__(self, folder: Path, pid: int) -> None:
        self.folder, self.pid = folder, pid

    def command(self, *words: str) -> list[str]:
        """The command that runs `words` in the cluster."""
        inside = ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", "-p", "--"]
        return [*inside, "env", f"SLURM_CONF={self.folder}/slurm.conf", *words]

    def said(self, *words: str) -> str:
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=_LIMIT_S).stdout

    def idle(self) -> bool:
        return set(self.said("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split()) == {"idle"}

    def running_on(self, node: str) -> list[str]:
        """Process ids of a node's daemon and of its steps' tasks."""
        return self.said("bash", "-c", _RUNNING.format(node=node)).split()

    def kill(self, node: str) -> None:
        """Simulates a power failure of a node."""
        subprocess.run(self.command("kill", "-9", *self.running_on(node)))


@contextlib.contextmanager
def slurm(nodes: int = 2) -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "slurm.conf").write_text(_CONF.format(folder=folder, host=_HOST, nodes=nodes))
        (folder / "gres.conf").write_text(f"NodeName=node[1-{nodes}] Name=gpu File={folder}/nvidia[0-3]\n")
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "hosts").write_text(f"127.0.0.1 localhost {_HOST}\n")
        tied = ["setpriv", "--pdeathsig", "KILL", "unshare", "-n", "-m", "-u", "-p", "-f", "--mount-proc"]
        with open(folder / "begin.log", "wb") as log:
            process = subprocess.Popen(
                [*tied, "--kill-child", "bash", "-c", _BEGIN.format(folder=folder, host=_HOST, nodes=nodes)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            until = time.monotonic() + _LIMIT_S
            while process.poll() is None and time.monotonic() < until:
                if found := children.read_text().split():
                    cluster = Slurm(folder, int(found[0]))
                    if cluster.idle():
                        break
                time.sleep(0.1)
            else:
                raise RuntimeError(f"Slurm does not start: {(folder / 'begin.log').read_text()}")
            yield cluster
        finally:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--kill", default="")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if why := missing():
        print(why, file=sys.stderr)
        return 1
    with slurm(asked.nodes) as cluster:
        process = subprocess.Popen(cluster.command(*[w for w in asked.command if w != "--"]))
        if asked.kill:
            node, _, after = asked.kill.partition(":")
            while process.poll() is None and len(cluster.running_on(node)) < 2:
                time.sleep(0.2)
            time.sleep(float(after or 0))
            print(f">>> killing {node}", flush=True)
            cluster.kill(node)
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
