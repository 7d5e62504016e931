"""The names of the metrics that runs report. Each name ends in its unit."""

from collections.abc import Iterator

from autoscout.job.device_names import is_cpu
from autoscout.job.objective import constraint, others
from autoscout.job.units import unit_of
from autoscout.job.words import nearest_name
from kb.records import Job, Objective, Task

LATENCIES = [
    f"{what}_{at}_ms" for what in ("ttft", "tpot", "itl", "e2el") for at in ("mean", "p50", "p90", "p95", "p99")
]
# Metric: the highest request rate within the latency limits. The search runs up to LOADS_PER_RATE loads at each rate;
# a load has REQUESTS_PER_LOAD requests, unless the job gives a number or longer loads are needed.
HIGHEST_RATE = "max_rate_rps"
REQUESTS_PER_LOAD, LOADS_PER_RATE = 200, 3
DEVICES = "devices"  # number of devices; serving and RL jobs with an objective or limit on it may use fewer than all
RATES_APART = 1.25 ** (1 / 8)  # ratio of neighbouring rates in the simulated search for the highest rate
SERVING_METRICS = (
    *LATENCIES,
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "goodput_rps",
    HIGHEST_RATE,
    "output_tokens_per_s_per_gpu",
    "usd_per_million_output_tokens",
    DEVICES,
    "kv_cache_tokens",
    "kv_needed_tokens",
    "peak_memory_gib",
    "cpu_s",
    "joules_per_token",
)
TRAINING_METRICS = ("step_time_s", "step_time_min_s", "tokens_per_s", "peak_memory_gib", "cpu_s", "joules_per_token")

_OURS = {*SERVING_METRICS, *TRAINING_METRICS}  # metrics with a known direction of improvement
MORE_IS_BETTER = ("_per_s", "_rps", "_per_gpu", "kv_cache_tokens")


def named_metrics(objective: Objective) -> list[str]:
    """Returns the metrics of the objectives, then of the constraints. Errors: AutoscoutError (exit 2) if invalid."""
    further = [one.metric for one in others(objective)]
    return [objective.metric, *further, *(constraint(text)[0] for text in objective.constraints)]


def counts_devices(job: Job) -> bool:
    """Whether an objective or constraint is on the number of devices, so that only part of a node may be used."""
    return job.task in ("serve", "rl") and DEVICES in named_metrics(job.objective)


def metrics_of_task(task: Task) -> tuple[str, ...]:
    return SERVING_METRICS if task == "serve" else TRAINING_METRICS


def metric_problems(job: Job, known: tuple[str, ...]) -> Iterator[str]:
    """Yields the problems of the job's objectives and constraints, one sentence each. `known`: the metrics that the
    job's runs report, () if unknown. Errors: AutoscoutError (exit 2) for an objective or constraint with bad syntax."""
    objective = job.objective
    further = others(objective)
    wanted = [objective.metric, *(o.metric for o in further)]
    if len(set(wanted)) < len(wanted):
        yield "objective names the same metric twice; remove it from objective.also"
    named = named_metrics(objective)
    for metric in named:
        if known and metric not in known:
            yield f"objective names '{metric}'{_not_reported(metric, known)}"
    for one in (objective, *further):
        if one.maximize in _OURS and not one.maximize.endswith(MORE_IS_BETTER):
            yield f"objective: '{one.maximize}' is better when it is lower; write minimize in place of maximize"
        if one.minimize in _OURS and one.minimize.endswith(MORE_IS_BETTER):
            yield f"objective: '{one.minimize}' is better when it is higher; write maximize in place of minimize"
    unpriced = [node.device for node in job.cluster.nodes if not node.price_per_hour]
    if unpriced and any("usd_" in metric for metric in named):
        yield (
            f"the objective is in dollars, but the nodes with {', '.join(unpriced)} have no price; set "
            "price_per_hour of each of cluster.nodes"
        )
    if "joules_per_token" in named and any(is_cpu(node.device) for node in job.cluster.nodes):
        yield (
            "joules_per_token is measured by NVIDIA's driver, so it needs GPU nodes, but the cluster has CPU "
            "nodes; choose a different metric"
        )
    if objective.metric == HIGHEST_RATE:
        if job.traffic.concurrency:
            yield "max_rate_rps searches for the rate at which requests arrive: remove traffic.concurrency"
        if not any(metric in LATENCIES for metric in named[len(wanted) :]):
            yield "max_rate_rps needs limits on latencies, for example constraints = ['ttft_p99_ms <= 500']"


def _not_reported(metric: str, known: tuple[str, ...]) -> str:
    """Returns the end of a message about a metric that runs do not report. A metric that exists in several units is
    listed in one of them."""
    in_one_unit = list({name.removesuffix(f"_{unit_of(name)}"): name for name in reversed(known)}.values())
    if metric == HIGHEST_RATE:
        more = "set traffic.rate to the rate that you want, and maximize output_tokens_per_s within the limits"
        return f", which only target = 'vllm' searches for; {more}"
    return nearest_name(metric, known, in_one_unit)
