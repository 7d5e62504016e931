"""Export formats of a serving launch: the file for `vllm serve --config`, a Slurm script, a Kubernetes manifest, and a
compose file."""

from autoscout.job import yaml_text
from autoscout.running.cluster.devices import NVIDIA
from autoscout.targets.launch import Launch, batch_head, comments, heading, program_lines, words
from autoscout.targets.vllm.fleet_servers import addressed
from kb.records import AutoscoutError

PORT = 8000
ROUTER_IMAGE = "ROUTER_IMAGE"  # placeholder: the user must supply an image with vllm-router
_RAY_PORT = 6379
_SIDE_HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"


def yaml(found: Launch) -> str:
    """Returns the content of the file for `vllm serve --config FILE.yaml`. Behind a router, all engines share this
    file. (JSON scalars are valid YAML scalars.) Errors: AutoscoutError (exit 2) for servers that differ."""
    if len({one.name for one in found.servers}) > 1:
        raise AutoscoutError(
            "this format cannot contain both the servers that read prompts and those that generate answers; "
            "use a different --format",
            2,
        )
    found = found.servers[0] if found.servers else found
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
    """Returns the lines of a Slurm script that start the Ray cluster that vLLM needs on the job's nodes."""
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
    """Returns a Kubernetes manifest: a Deployment and its Service, or for several servers a StatefulSet per role and
    the router. The processes of an engine share memory through /dev/shm. Errors: AutoscoutError (exit 2) for a server
    on several nodes."""
    if found.nodes > 1:
        raise AutoscoutError("a Kubernetes Deployment cannot span several nodes; use --format command or slurm", 2)
    lines = heading(found)
    if not found.servers:
        lines += [*_k8s_servers(found, _name(found), 0), *_k8s_service(_name(found), "")]
        return "\n".join(lines) + "\n"
    urls = []
    for role in dict.fromkeys(one.name for one in found.servers):
        of_role, name = [one for one in found.servers if one.name == role], f"{_name(found)}-{role}"
        lines += [*_k8s_servers(of_role[0], name, len(of_role)), *_k8s_service(name, "clusterIP: None, "), "---"]
        urls += [f"http://{name}-{i}.{name}:{PORT}" for i in range(len(of_role))]
    return "\n".join([*lines, *_k8s_router(found, urls)]) + "\n"


def _k8s_servers(one: Launch, name: str, replicas: int) -> list[str]:
    """Returns the lines of the servers' manifest. `replicas`: number of servers behind a router, each with its own
    name; 0 for a Deployment."""
    gpus = ["          resources:", f'            limits: {{ "{one.resource}": {sum(one.devices)} }}']
    env = [f"            - {{ name: {k}, value: {yaml_text.emitted(v)} }}" for k, v in one.environment.items()]
    # engines with a different role fetch KV blocks from this address
    if "--kv-transfer-config" in one.arguments and replicas:
        env.append(f"            - {{ name: {_SIDE_HOST}, valueFrom: {{ fieldRef: {{ fieldPath: status.podIP }} }} }}")
    return [
        "apiVersion: apps/v1",
        f"kind: {'StatefulSet' if replicas else 'Deployment'}",
        f"metadata: {{ name: {name} }}",
        "spec:",
        f"  replicas: {replicas or 1}",
        *([f"  serviceName: {name}", "  podManagementPolicy: Parallel"] if replicas else []),
        f"  selector: {{ matchLabels: {{ app: {name} }} }}",
        "  template:",
        f"    metadata: {{ labels: {{ app: {name} }} }}",
        "    spec:",
        "      containers:",
        "        - name: vllm",
        f"          image: {yaml_text.emitted(one.image)}",
        '          command: ["vllm"]',
        "          args:",
        *[f"            - {yaml_text.emitted(word)}" for word in _args(one)],
        *(["          env:", *env] if env else []),
        f"          ports: [{{ containerPort: {PORT} }}]",
        f"          readinessProbe: {{ httpGet: {{ path: /health, port: {PORT} }}, periodSeconds: 5 }}",
        *(gpus if one.on_gpus else []),
        "          volumeMounts: [{ name: shm, mountPath: /dev/shm }]",
        "      volumes: [{ name: shm, emptyDir: { medium: Memory } }]",
    ]


def _k8s_service(name: str, more: str) -> list[str]:
    return [
        "---",
        "apiVersion: v1",
        "kind: Service",
        f"metadata: {{ name: {name} }}",
        f"spec: {{ selector: {{ app: {name} }}, {more}ports: [{{ port: 80, targetPort: {PORT} }}] }}",
    ]


def _k8s_router(found: Launch, urls: list[str]) -> list[str]:
    """Returns the lines of the router's manifest. The router reaches the servers by their names in the cluster."""
    name = _name(found)
    return [
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
    return addressed(found.router, "0.0.0.0", PORT, urls)


def compose(found: Launch) -> str:
    """Returns a compose file with services on the first GPUs of one machine: one service for each server, and one for
    the router. Errors: AutoscoutError (exit 2) for a server on several nodes."""
    if found.nodes > 1:
        raise AutoscoutError("a Compose service cannot span several nodes; use --format command or slurm", 2)
    name = _name(found)
    lines = [*heading(found), *comments("add the volumes that contain your models"), "services:"]
    if not found.servers:
        return "\n".join([*lines, *_compose_server(found, name, None)]) + "\n"
    urls, first = [], 0
    for number, one in enumerate(found.servers):
        each = f"{name}-{one.name}-{number}"
        lines += _compose_server(one, each, first)
        urls.append(f"http://{each}:{PORT}")
        first += sum(one.devices)
    lines += [
        f"  {name}:",
        f"    image: {ROUTER_IMAGE}",
        "    entrypoint:",
        *[f"      - {_literal(word)}" for word in _router_words(found, urls)],
        f'    ports: ["{PORT}:{PORT}"]',
    ]
    return "\n".join(lines) + "\n"


def _compose_server(found: Launch, name: str, first: int | None) -> list[str]:
    """Returns the lines of a compose service. `first`: index of the first GPU of a server behind a router (such a
    server has its own GPUs and no public port); else None."""
    count = sum(found.devices)
    amd = ['    devices: ["/dev/kfd", "/dev/dri"]', "    group_add: [video]"]
    gpus = [str((first or 0) + i) for i in range(count)]
    which = f"count: {count}" if first is None else "device_ids: [{}]".format(", ".join(f'"{gpu}"' for gpu in gpus))
    given = f"      - {{ driver: nvidia, {which}, capabilities: [gpu] }}"
    nvidia = ["    deploy:", "      resources:", "        reservations:", "          devices:", f"    {given}"]
    variables = dict(found.environment)
    if first is not None and found.on_gpus and found.resource != NVIDIA:
        variables["HIP_VISIBLE_DEVICES"] = ",".join(gpus)
    command = ['    entrypoint: ["vllm"]', "    command:", *[f"      - {_literal(word)}" for word in _args(found)]]
    # the server must announce its own container's address
    if "--kv-transfer-config" in found.arguments and first is not None:
        line = f'export {_SIDE_HOST}=$(hostname -i); exec vllm "$@"'
        command[0] = f'    entrypoint: ["bash", "-c", {_literal(line)}, "vllm"]'
    return [
        f"  {name}:",
        f"    image: {yaml_text.emitted(found.image)}",
        *command,
        *(["    environment:"] if variables else []),
        *[f"      {variable}: {_literal(value)}" for variable, value in variables.items()],
        *([f'    ports: ["{PORT}:{PORT}"]'] if first is None else []),
        "    ipc: host",
        *((nvidia if found.resource == NVIDIA else amd) if found.on_gpus else []),
    ]


def _name(found: Launch) -> str:
    return "".join(c if c.isalnum() else "-" for c in found.job.lower()).strip("-")


def _args(found: Launch) -> list[str]:
    more = [word for pair in words(found) if pair[0] not in ("--host", "--port") for word in pair]
    return [*found.program[1:], "--host", "0.0.0.0", "--port", str(PORT), *more]


def _literal(text: str) -> str:
    """Returns the text as YAML, escaped so that compose does not expand variables."""
    return yaml_text.emitted(text).replace("$", "$$")
