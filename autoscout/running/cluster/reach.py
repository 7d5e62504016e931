"""Starts a process on a host: directly on this one, over ssh, as a step of our Slurm allocation, or as a Ray task.

Each of these is a command that takes the process's command as its last arguments and connects our stdin and stdout to
the process. When that connection ends, for whatever reason, the process's stdin closes.
"""

import re
import shlex
import sys
from pathlib import Path
from typing import Literal

Way = Literal["local", "ssh", "srun", "ray"]

_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_SSH_ALIVE = ("-o", "ServerAliveInterval=4", "-o", "ServerAliveCountMax=3")
RAY_TASK = Path(__file__).parent / "ray_task.py"
# (pattern in the output of a failed start, cause, what to do)
_REFUSALS = (
    (r"ray: no node", "Ray has no such node", "`ray status` lists them"),
    (
        r"Failed to connect to GCS|ConnectionError: .*[Rr]ay|Could not find any running Ray|ray: no cluster",
        "Ray does not answer",
        "start Ray (`ray start --head`), and set RAY_ADDRESS to its address",
    ),
    (r"Permission denied \(", "ssh is refused", "copy your public key to that host (`ssh-copy-id {host}`)"),
    (
        r"Host key verification failed|IDENTIFICATION HAS CHANGED",
        "the host's key differs from the known one",
        "check that this is the right machine, then run `ssh-keygen -R {host}` and log in once with ssh",
    ),
    (
        r"Could not resolve hostname|Name or service not known",
        "no host of this name is known",
        "correct the host file, or name it in /etc/hosts",
    ),
    (
        r"Connection refused|timed out|No route to host|Network is unreachable|Connection reset by",
        "the host cannot be reached over ssh",
        "check that the host is up (`ssh {host} true`), or remove it from the host file",
    ),
    (
        r"Required node not available|Invalid node name|node configuration|not in (?:this )?(?:job|partition)",
        "Slurm cannot start a job step on this node now",
        "`sinfo -N -n {host}` shows its state",
    ),
    (
        r"Job/step already completing|[Jj]ob (?:\d+ )?has expired|Invalid job id"
        r"|allocation .*(?:revoked|expired)|Expired",
        "the Slurm allocation has ended",
        "request a new one; continue the session with `autoscout tune --resume`",
    ),
)


def on_host(way: Way, host: str, command: list[str]) -> list[str]:
    """The command that starts `command` on a host from this machine."""
    if way == "ssh":
        return [*_SSH, *_SSH_ALIVE, host, shlex.join(command)]
    if way == "srun":
        where = ("--nodes=1", "--ntasks=1", f"--nodelist={host}")
        return ["srun", "--overlap", "--immediate=30", "--quiet", "--kill-on-bad-exit=0", *where, *command]
    if way == "ray":
        return [sys.executable, str(RAY_TASK), host, *command]
    return command


def refusal(host: str, output: str) -> str:
    """The reason why nothing starts on a host, with a remedy, according to the `output` of the attempt; "" if
    unknown."""
    for sign, about, mend in _REFUSALS:
        if re.search(sign, output):
            return f"{about}; {mend.format(host=host)}"
    return ""
