"""Exports a launch on several nodes as a host file, a Kubernetes JobSet, or a Ray script. Nodes, devices and ranks are
those of the measurement, in the same order, even if nodes differ."""

import json

from autoscout.job import yaml_text
from autoscout.job.device_names import record_of
from autoscout.running.cluster.devices import AMD
from autoscout.running.torchrun import MEETING_PORT
from autoscout.targets.launch import (
    Launch,
    comments,
    exports,
    groups_of,
    heading,
    kinds_by_node,
    placed_by_shell,
    program_lines,
)
from kb.records import AutoscoutError


def hostfile(launch: Launch) -> str:
    """Returns a host file for DeepSpeed and MPI, with a host and its slots per line, the head node first."""
    names = launch.hosts or [f"node{i}" for i in range(1, launch.nodes + 1)]
    yours = "" if launch.hosts else "the names of your hosts"
    lines = [f"{name} slots={count}" for name, count in zip(names, launch.devices, strict=True)]
    run = torchrun(launch, '"$RANKS"', ["--node-rank", '"$NODE"', *meeting('"$HEAD"')]) if launch.ranks else ""
    what = (
        ["on each host, with HEAD, NODE and RANKS:", *run.splitlines()] if run else program_lines(launch).splitlines()
    )
    kinds = "; ".join(f"{name} has {kind}" for name, kind in zip(names, kinds_by_node(launch), strict=False))
    return "\n".join([*comments(launch.name, launch.evidence, yours, kinds, *what), *lines]) + "\n"


def jobset(launch: Launch) -> str:
    """Returns a Kubernetes JobSet: one replicated job per group of equal nodes, with one pod per node. The user must
    supply the image."""
    name = dns_name(launch.job)
    placed = ""
    if launch.placed:
        launch, placed = placed_by_shell(launch)
    theirs = ", and needs ROCm (AMD's images: rocm/primus and rocm/megatron-lm)" if launch.resource == AMD else ""
    lines = [
        *heading(launch),
        *comments(f"replace the image with your own{theirs}; needs the JobSet controller (jobset.sigs.k8s.io)"),
        "apiVersion: jobset.x-k8s.io/v1alpha2",
        "kind: JobSet",
        f"metadata: {{ name: {name} }}",
        "spec:",
        "  failurePolicy: { maxRestarts: 0 }",
        f"  network: {{ enableDNSHostnames: true, subdomain: {name} }}",
        "  replicatedJobs:",
    ]
    start, head = 0, f"{name}-nodes0-0-0.{name}"
    for group, (nodes, count, kind) in enumerate(groups_of(launch)):
        node = f"$(({start} + JOB_COMPLETION_INDEX))"
        if placed:
            run = f"export NODE={node} HEAD={head} RANKS={count}\n{placed}"
        elif launch.ranks:
            run = f"exec {torchrun(launch, str(launch.ranks[start]), ['--node-rank', node, *meeting(head)])}"
        else:
            run = f"exec {program_lines(launch)}"
        script = "\n".join([*exports(launch), run])
        lines += replicated(f"nodes{group}", nodes, pod(launch, script, count, kind))
        start += nodes
    return "\n".join(lines) + "\n"


def replicated(name: str, pods: int, spec: list[str]) -> list[str]:
    """Returns a replicated job of a JobSet. `spec`: lines of the pods' spec."""
    return [
        f"    - name: {name}",
        "      template:",
        "        spec:",
        f"          parallelism: {pods}",
        f"          completions: {pods}",
        "          completionMode: Indexed",
        "          backoffLimit: 0",
        "          template:",
        "            spec:",
        *(" " * 14 + line for line in spec),
    ]


def dns_name(name: str) -> str:
    """Converts the name to a valid Kubernetes name."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower()).strip("-")[:50].strip("-")


def pod(launch: Launch, script: str, devices: int, kind: str = "") -> list[str]:
    """Returns the lines of the `spec` of a pod that runs `script` once. `kind`: kind of its devices, if the job has
    several kinds."""
    limits = f'    resources: {{ limits: {{ "{launch.resource}": {devices} }} }}'
    return [
        "restartPolicy: Never",
        *([f"# on {kind}: add the nodeSelector that selects these nodes in your cluster"] if kind else []),
        "containers:",
        "  - name: run",
        f"    image: {yaml_text.emitted(launch.image or 'IMAGE')}",
        '    command: ["bash", "-c"]',
        f"    args: [{yaml_text.emitted(script)}]",
        *([f"    ports: [{{ containerPort: {launch.port} }}]"] if launch.port else []),
        *([limits] if launch.on_gpus else []),
        "    volumeMounts: [{ name: shm, mountPath: /dev/shm }]",
        "volumes: [{ name: shm, emptyDir: { medium: Memory } }]",
    ]


def ray(launch: Launch) -> str:
    """Returns a Python script for `ray job submit` or a Ray driver, with one bundle and one task per node. The task
    starts the node's ranks.

    Errors: AutoscoutError (exit 2) for a program that starts its own processes."""
    if not launch.ranks:
        raise AutoscoutError("--format ray: this program starts its own processes; use --format command", 2)
    run = torchrun(launch, "$RANKS", ["--node-rank", "$NODE", *meeting("$HEAD")])
    script = "\n".join([*exports(launch), f"exec {run}"])
    unit = "GPU" if launch.on_gpus else "CPU"
    bundles, accelerators = f'[{{"{unit}": count}} for count in RANKS]', []
    if kinds := kinds_by_node(launch):
        bundles = f'[{{"{unit}": count, **on}} for count, on in zip(RANKS, ON)]'
        accelerators = [f"ON = {[_accelerator(kind) for kind in kinds]}  # the kind of device of each node"]
    lines = [
        *heading(launch),
        "import os",
        "import subprocess",
        "",
        "import ray",
        "from ray.util.placement_group import placement_group",
        "from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy",
        "",
        f"RANKS = {launch.ranks}  # of each node",
        *accelerators,
        f"SCRIPT = {json.dumps(script)}",
        "",
        "",
        "@ray.remote(max_retries=0, num_cpus=0)",
        "def address():",
        "    return ray.util.get_node_ip_address()",
        "",
        "",
        "@ray.remote(max_retries=0)",
        "def node(number, head):",
        "    os.setpriority(os.PRIO_PROCESS, 0, 0) if os.geteuid() == 0 else None  # Ray's workers are niced",
        '    mine = {**os.environ, "NODE": str(number), "HEAD": head, "RANKS": str(RANKS[number])}',
        '    subprocess.run(["bash", "-c", SCRIPT], env=mine, check=True)',
        "",
        "",
        'ray.init(address="auto")',
        f'group = placement_group({bundles}, strategy="STRICT_SPREAD")',
        "if not group.wait(600):",
        f'    raise SystemExit(f"the cluster has no nodes with {{RANKS}} {unit}s now; `ray status` lists what it has")',
        "at = [PlacementGroupSchedulingStrategy(group, index) for index in range(len(RANKS))]",
        "head = ray.get(address.options(scheduling_strategy=at[0]).remote())",
        f"options = [{{'num_{unit.lower()}s': count, 'scheduling_strategy': at[i]}} for i, count in enumerate(RANKS)]",
        "ray.get([node.options(**options[i]).remote(i, head) for i in range(len(RANKS))])",
    ]
    return "\n".join(lines) + "\n"


def _accelerator(kind: str) -> dict[str, float]:
    """Returns {Ray's resource name: amount} for a kind of device; {} if unknown. The resource is named after the series
    in NVIDIA's device names (NVIDIA_GPU_NAME_PATTERN)."""
    known = record_of(kind)
    series = known.series[0] if known and known.vendor == "nvidia" and known.series else " "
    return {} if " " in series else {f"accelerator_type:{series.upper()}": 0.001}


def torchrun(launch: Launch, ranks: str, more: list[str]) -> str:
    """Returns the torchrun command of a node. `ranks`: the node's number of ranks, as a shell word."""
    head = ["torchrun", "--nproc-per-node", ranks, "--nnodes", str(launch.nodes), *more]
    return " ".join(head) + " " + program_lines(launch)


def meeting(head: str) -> list[str]:
    return ["--master-addr", head, "--master-port", str(MEETING_PORT)]
