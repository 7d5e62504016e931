"""Writes a script for `sbatch`, or a Kubernetes JobSet, that runs a whole session on a cluster.

Both specify the session's name, so that they resume the session when they are started again (after preemption, the time
limit or a pod's eviction)."""

import math
import shlex
from pathlib import Path

from autoscout.job import yaml_text
from autoscout.job.device_names import is_cpu
from autoscout.job.duration import seconds
from autoscout.job.shipped import job_file
from autoscout.running.cluster.devices import resource
from autoscout.targets.launch import PROCESSORS, comments
from autoscout.targets.spread import dns_name, replicated
from kb import door
from kb.records import AutoscoutError, Job
from kb.store import sessions_folder

_WARNED_S = 120  # seconds before the time limit when Slurm sends a signal, so that the running experiment can finish
_SLACK_S = 1800.0  # seconds added to the time limit for preparation and the final rounds
_RAY_PORT = 6379


def script(form: str, job: Job, file: Path, kb: Path, options: list[str]) -> str:
    """The script or manifest as text. `options`: options of `autoscout tune`. Errors: AutoscoutError (exit 2) if the
    nodes differ, or `cluster.hosts` does not suit the form."""
    counts = {(node.device, node.count) for node in job.cluster.nodes}
    if len(counts) > 1:
        raise AutoscoutError(
            "the job's nodes differ, and one Slurm or JobSet script cannot request different nodes: allocate "
            "them with salloc or list them in a host file, and run `autoscout tune` there",
            2,
        )
    wanted = "slurm" if form == "slurm" else "ray"
    file, several = job_file(file), len(job.cluster.nodes) > 1
    if several and job.cluster.hosts != wanted:
        raise AutoscoutError(
            f'the job has {len(job.cluster.nodes)} nodes: set cluster.hosts = "{wanted}" to run them under this '
            "scheduler",
            2,
        )
    return _sbatch(job, file, kb, options) if form == "slurm" else _jobset(job, file, options)


def _sbatch(job: Job, file: Path, kb: Path, options: list[str]) -> str:
    node, on_cpu = job.cluster.nodes[0], is_cpu(job.cluster.nodes[0].device)
    name, wall = door.plain(job.name), seconds(job.budget.wall)
    minutes = (wall + _SLACK_S + _WARNED_S) / 60
    new = ["autoscout", "tune", str(file.absolute()), "--no-tui", "--kb", str(kb.absolute()), *options]
    again = ["autoscout", "tune", "--no-tui", "--kb", str(kb.absolute()), "--resume"]
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name=autoscout-{name}",
            f"#SBATCH --nodes={len(job.cluster.nodes)}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --{'cpus-per-task' if on_cpu else 'gpus-per-node'}={node.count}",
            f"#SBATCH --time={math.ceil(minutes)}"
            if math.isfinite(wall)
            else "# add --time: the job has no budget.wall",
            f"#SBATCH --no-kill --requeue --open-mode=append --signal=B:USR1@{_WARNED_S}",
            *([] if on_cpu else comments(PROCESSORS)),
            (
                "# a lost node is reported and no longer used; add the options that your site requires, such as "
                "--account and --partition"
            ),
            f'SESSION={shlex.quote(name)}-"$SLURM_JOB_ID"',
            f'if [ -d {shlex.quote(str(sessions_folder(kb.absolute())))}/"$SESSION" ]',
            f'then {shlex.join(again)} "$SESSION" &',
            f'else {shlex.join(new)} --named "$SESSION" &',
            "fi",
            "child=$! late=",
            "# time is nearly up: stop after the running experiment, and requeue",
            "trap 'late=yes; kill -USR1 $child' USR1",
            "trap 'kill -TERM $child' TERM",
            "while wait $child; code=$?; [ $code -gt 128 ] && kill -0 $child 2>/dev/null; do :; done",
            'if [ -n "$late" ] && [ $code -ge 128 ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
            "exit $code",
            "",
        ]
    )


def _jobset(job: Job, file: Path, options: list[str]) -> str:
    """A JobSet whose head pod runs the session. The pods of all other nodes form a Ray cluster with the head, and end
    when the head ends."""
    name, several = dns_name(f"autoscout-{job.name}"), len(job.cluster.nodes) > 1
    node = job.cluster.nodes[0]
    unit = "cpus" if is_cpu(node.device) else "gpus"
    head = f"{name}-head-0-0.{name}:{_RAY_PORT}"
    tune = ["autoscout", "tune", "/job/job.toml", "--no-tui", "--kb", "/kb/kb.duckdb", *options, "--named", name]
    again = ["autoscout", "tune", "--no-tui", "--kb", "/kb/kb.duckdb", "--resume", name]
    begin = f"ray start --head --port={_RAY_PORT} --num-{unit}={node.count}"
    until = "until [ $(python -c 'import ray; ray.init(\"auto\"); print(len(ray.nodes()))' | tail -n 1)"
    lead = [begin, f"{until} -ge {len(job.cluster.nodes)} ]; do sleep 2; done"] if several else []
    run = [f"if [ -d /kb/sessions/{name} ]; then exec {shlex.join(again)}; fi", f"exec {shlex.join(tune)}"]
    join = f"until ray start --address={head} --num-{unit}={node.count} --block; do sleep 2; done"
    lines = [
        "# IMAGE: your image with autoscout, the job's program" + (" and ray" if several else ""),
        "# the knowledge base is on your volume claim named `autoscout`; needs the JobSet controller",
        "apiVersion: v1",
        "kind: ConfigMap",
        f"metadata: {{ name: {name} }}",
        f"data: {{ job.toml: {yaml_text.emitted(file.read_text())} }}",
        "---",
        "apiVersion: jobset.x-k8s.io/v1alpha2",
        "kind: JobSet",
        f"metadata: {{ name: {name} }}",
        "spec:",
        "  failurePolicy: { maxRestarts: 3 }",
        "  successPolicy: { operator: Any, targetReplicatedJobs: [head] }",
        f"  network: {{ enableDNSHostnames: true, subdomain: {name} }}",
        "  replicatedJobs:",
        *_replicated("head", 1, "\n".join([*lead, *run]), job, name),
        *(_replicated("others", len(job.cluster.nodes) - 1, join, job, name) if several else []),
    ]
    return "\n".join(lines) + "\n"


def _replicated(role: str, pods: int, run: str, job: Job, name: str) -> list[str]:
    node = job.cluster.nodes[0]
    limits = [] if is_cpu(node.device) else [f'resources: {{ limits: {{ "{resource(job)}": {node.count} }} }}']
    kept = {"shm": "/dev/shm", "job": "/job", "kb": "/kb"} if role == "head" else {"shm": "/dev/shm"}
    mounts = [f"{{ name: {volume}, mountPath: {path} }}" for volume, path in kept.items()]
    volumes = {
        "shm": "emptyDir: { medium: Memory }",
        "job": f"configMap: {{ name: {name} }}",
        "kb": "persistentVolumeClaim: { claimName: autoscout }",
    }
    spec = [
        "restartPolicy: Never",
        "containers:",
        "  - name: run",
        "    image: IMAGE",
        '    command: ["bash", "-c"]',
        f"    args: [{yaml_text.emitted(run)}]",
        *(f"    {line}" for line in limits),
        f"    volumeMounts: [{', '.join(mounts)}]",
        "volumes:",
        *(f"  - {{ name: {volume}, {volumes[volume]} }}" for volume in kept),
    ]
    return replicated(role, pods, spec)
