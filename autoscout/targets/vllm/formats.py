"""Export formats of a serving launch: a file for `vllm serve --config`, a Slurm script, a Kubernetes manifest, a
compose file."""

from autoscout.job import yaml_text
from autoscout.running.cluster.devices import NVIDIA
from autoscout.targets.launch import Launch, batch_head, comments, heading, program_lines, words
from autoscout.targets.vllm.disaggregated import one_server
from kb.records import AutoscoutError

PORT = 8000
ROUTER_IMAGE = "ROUTER_IMAGE"  # placeholder: which image has vllm-router only the site knows
_RAY_PORT = 6379


def yaml(found: Launch) -> str:
    """For `vllm serve --config FILE.yaml`: that of each engine behind a router. JSON scalars are YAML scalars."""
    one_server(found)
    found = found.engine or found
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
    one, count = found.engine or found, max(found.engines, 1)
    name, args = _name(found) + ("-engine" if found.engine else ""), _args(one)
    gpus = ["          resources:", f'            limits: {{ "{found.resource}": {sum(one.devices)} }}']
    env = [f"            - {{ name: {k}, value: {yaml_text.emitted(v)} }}" for k, v in found.environment.items()]
    lines = [
        *heading(found),
        "apiVersion: apps/v1",
        f"kind: {'StatefulSet' if found.engine else 'Deployment'}",
        f"metadata: {{ name: {name} }}",
        "spec:",
        f"  replicas: {count}",
        *([f"  serviceName: {name}", "  podManagementPolicy: Parallel"] if found.engine else []),
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
        *(_k8s_router(found, name) if found.engine else _k8s_service(name, "")),
    ]
    return "\n".join(lines) + "\n"


def _k8s_service(name: str, more: str) -> list[str]:
    return [
        "---",
        "apiVersion: v1",
        "kind: Service",
        f"metadata: {{ name: {name} }}",
        f"spec: {{ selector: {{ app: {name} }}, {more}ports: [{{ port: 80, targetPort: {PORT} }}] }}",
    ]


def _k8s_router(found: Launch, engine: str) -> list[str]:
    """The engines' names in the cluster, and the router that knows them by these."""
    name = _name(found)
    urls = [f"http://{engine}-{i}.{engine}:{PORT}" for i in range(found.engines)]
    return [
        *_k8s_service(engine, "clusterIP: None, "),
        "---",
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
        "        - name: router",
        f"          image: {ROUTER_IMAGE}",
        f"          command: [{', '.join(yaml_text.emitted(word) for word in _router_words(found, urls))}]",
        f"          ports: [{{ containerPort: {PORT} }}]",
        *_k8s_service(name, ""),
    ]


def _router_words(found: Launch, urls: list[str]) -> list[str]:
    return [*found.router, "--host", "0.0.0.0", "--port", str(PORT), "--worker-urls", *urls]


def compose(found: Launch) -> str:
    """A service of Docker Compose on one machine, whose first GPUs it takes. Errors: AutoscoutError (exit 2) for a
    server over several nodes."""
    one_server(found)
    if found.nodes > 1:
        raise AutoscoutError("a server over several nodes is no one service; use --format command or slurm", 2)
    one, name = found.engine or found, _name(found)
    names = [f"{name}-{i}" for i in range(found.engines)] or [name]
    lines = [*heading(found), *comments("add: the volumes that your models are in"), "services:"]
    for number, each in enumerate(names):
        lines += _compose_server(one, each, number if found.engine else None)
    if found.engine:
        urls = [f"http://{each}:{PORT}" for each in names]
        lines += [
            f"  {name}:",
            f"    image: {ROUTER_IMAGE}",
            "    entrypoint:",
            *[f"      - {_literal(word)}" for word in _router_words(found, urls)],
            f'    ports: ["{PORT}:{PORT}"]',
        ]
    return "\n".join(lines) + "\n"


def _compose_server(found: Launch, name: str, number: int | None) -> list[str]:
    """`number`: of an engine behind a router, which has its own GPUs and is not asked from outside."""
    count = sum(found.devices)
    amd = ['    devices: ["/dev/kfd", "/dev/dri"]', "    group_add: [video]"]
    ids = ", ".join(f'"{(number or 0) * count + i}"' for i in range(count))
    which = f"count: {count}" if number is None else f"device_ids: [{ids}]"
    given = f"      - {{ driver: nvidia, {which}, capabilities: [gpu] }}"
    nvidia = ["    deploy:", "      resources:", "        reservations:", "          devices:", f"    {given}"]
    variables = dict(found.environment)
    if number is not None and found.on_gpus and found.resource != NVIDIA:
        variables["HIP_VISIBLE_DEVICES"] = ",".join(str(number * count + i) for i in range(count))
    return [
        f"  {name}:",
        f"    image: {yaml_text.emitted(found.image)}",
        '    entrypoint: ["vllm"]',
        "    command:",
        *[f"      - {_literal(word)}" for word in _args(found)],
        *(["    environment:"] if variables else []),
        *[f"      {variable}: {_literal(value)}" for variable, value in variables.items()],
        *([f'    ports: ["{PORT}:{PORT}"]'] if number is None else []),
        "    ipc: host",
        *((nvidia if found.resource == NVIDIA else amd) if found.on_gpus else []),
    ]


def _name(found: Launch) -> str:
    return "".join(c if c.isalnum() else "-" for c in found.job.lower()).strip("-")


def _args(found: Launch) -> list[str]:
    more = [word for pair in words(found) if pair[0] not in ("--host", "--port") for word in pair]
    return [*found.program[1:], "--host", "0.0.0.0", "--port", str(PORT), *more]


def _literal(text: str) -> str:
    """As YAML has it, where compose fills in no variable."""
    return yaml_text.emitted(text).replace("$", "$$")
