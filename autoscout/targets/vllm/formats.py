"""Export formats of a serving launch: a file for `vllm serve --config`, a Slurm script, a Kubernetes manifest, a
compose file."""

from autoscout.job import yaml_text
from autoscout.running.cluster.devices import NVIDIA
from autoscout.targets.launch import Launch, batch_head, comments, heading, program_lines, words
from autoscout.targets.vllm.disaggregated import one_server
from kb.records import AutoscoutError

PORT = 8000
_RAY_PORT = 6379


def yaml(found: Launch) -> str:
    """For `vllm serve --config FILE.yaml`. JSON scalars are YAML scalars."""
    one_server(found)
    lines = [*heading(found), *comments(*(f"needs in the environment: {k}={v}" for k, v in found.environment.items()))]
    lines.append(f"model: {yaml_text.emitted(found.program[-1])}")
    for flag, value in found.arguments.items():
        name = flag.removeprefix("--")
        off = value is True and name.startswith("no-")
        lines.append(f"{name.removeprefix('no-')}: false" if off else f"{name}: {yaml_text.emitted(value)}")
    return "\n".join(lines) + "\n"


def slurm(found: Launch) -> str:
    ray = _ray(found.nodes) if "ray" in found.arguments.values() else []
    lines = [*batch_head(found), *ray, f"srun --nodes=1 --ntasks=1 --overlap {program_lines(found)}"]
    return "\n".join(lines) + "\n"


def _ray(nodes: int) -> list[str]:
    """Lines that start a Ray cluster over the nodes of the Slurm job, from which vLLM takes its workers."""
    others = f'srun --nodes={nodes - 1} --ntasks={nodes - 1} --overlap -x "$head"'
    alive = "ray list nodes --filter state=ALIVE --format=json | grep -c node_id"
    return [
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f'export RAY_ADDRESS="$head:{_RAY_PORT}"',
        f'srun --nodes=1 --ntasks=1 --overlap -w "$head" ray start --head --port={_RAY_PORT} --block &',
        f'{others} ray start --address="$RAY_ADDRESS" --block &',
        f'until [ "$({alive})" -ge {nodes} ]; do sleep 2; done',
    ]


def k8s(found: Launch) -> str:
    """A Deployment and its Service. The engine's processes share memory through /dev/shm."""
    one_server(found)
    if found.nodes > 1:
        raise AutoscoutError("a server over several nodes is no one Deployment; use --format command or slurm", 2)
    name, args = _name(found), _args(found)
    gpus = ["          resources:", f'            limits: {{ "{found.resource}": {sum(found.devices)} }}']
    env = [f"            - {{ name: {k}, value: {yaml_text.emitted(v)} }}" for k, v in found.environment.items()]
    lines = [
        *heading(found),
        "apiVersion: apps/v1",
        "kind: Deployment",
        f"metadata: {{ name: {name} }}",
        "spec:",
        "  replicas: 1",
        f"  selector: {{ matchLabels: {{ app: {name} }} }}",
        "  template:",
        f"    metadata: {{ labels: {{ app: {name} }} }}",
        "    spec:",
        "      containers:",
        "        - name: vllm",
        f"          image: {yaml_text.emitted(found.image)}",
        '          command: ["vllm"]',
        "          args:",
        *[f"            - {yaml_text.emitted(word)}" for word in args],
        *(["          env:", *env] if env else []),
        f"          ports: [{{ containerPort: {PORT} }}]",
        f"          readinessProbe: {{ httpGet: {{ path: /health, port: {PORT} }}, periodSeconds: 5 }}",
        *(gpus if found.on_gpus else []),
        "          volumeMounts: [{ name: shm, mountPath: /dev/shm }]",
        "      volumes: [{ name: shm, emptyDir: { medium: Memory } }]",
        "---",
        "apiVersion: v1",
        "kind: Service",
        f"metadata: {{ name: {name} }}",
        f"spec: {{ selector: {{ app: {name} }}, ports: [{{ port: 80, targetPort: {PORT} }}] }}",
    ]
    return "\n".join(lines) + "\n"


def compose(found: Launch) -> str:
    """A service of Docker Compose on one machine, whose first GPUs it takes. Errors: AutoscoutError (exit 2) for a
    server over several nodes."""
    one_server(found)
    if found.nodes > 1:
        raise AutoscoutError("a server over several nodes is no one service; use --format command or slurm", 2)
    count = sum(found.devices)
    amd = ['    devices: ["/dev/kfd", "/dev/dri"]', "    group_add: [video]"]
    given = f"      - {{ driver: nvidia, count: {count}, capabilities: [gpu] }}"
    nvidia = ["    deploy:", "      resources:", "        reservations:", "          devices:", f"    {given}"]
    lines = [
        *heading(found),
        *comments("add: the volumes that your models are in"),
        "services:",
        f"  {_name(found)}:",
        f"    image: {yaml_text.emitted(found.image)}",
        '    entrypoint: ["vllm"]',
        "    command:",
        *[f"      - {_literal(word)}" for word in _args(found)],
        *(["    environment:"] if found.environment else []),
        *[f"      {name}: {_literal(value)}" for name, value in found.environment.items()],
        f'    ports: ["{PORT}:{PORT}"]',
        "    ipc: host",
        *((nvidia if found.resource == NVIDIA else amd) if found.on_gpus else []),
    ]
    return "\n".join(lines) + "\n"


def _name(found: Launch) -> str:
    return "".join(c if c.isalnum() else "-" for c in found.job.lower()).strip("-")


def _args(found: Launch) -> list[str]:
    more = [word for pair in words(found) if pair[0] not in ("--host", "--port") for word in pair]
    return [*found.program[1:], "--host", "0.0.0.0", "--port", str(PORT), *more]


def _literal(text: str) -> str:
    """As YAML has it, where compose fills in no variable."""
    return yaml_text.emitted(text).replace("$", "$$")
