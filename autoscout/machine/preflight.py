"""Implements `autoscout check`: checks a job before its budget is spent."""

import math
import statistics
from pathlib import Path

from autoscout.job.duration import seconds
from autoscout.job.metrics import HIGHEST_RATE
from autoscout.job.objective import constraint, cost
from autoscout.job.requests import of_traffic
from autoscout.job.words import PLAIN, several
from autoscout.machine.devices_here import GPU_TIMEOUT_S, here
from autoscout.machine.doctor import Finding, engine
from autoscout.running.cluster.devices import device_kind, in_words, spelled
from autoscout.running.conditions import busy_now
from autoscout.simulate.hardware.capacity import capacity
from autoscout.targets.command.reading import GUESSED_STEP
from autoscout.targets.jobs import JobSpace, profiler_of
from autoscout.targets.target import LEAST_ITERATIONS, target_of
from autoscout.tuning.confirm import FINALISTS
from autoscout.tuning.evidence import quantile
from autoscout.tuning.fitting import beside_engine, fits_nowhere
from autoscout.tuning.predict import PredictedMemory
from autoscout.tuning.repeats import most_rounds
from kb import store
from kb.journal_rows import cluster_name
from kb.records import AutoscoutError, Job, LaunchSettings, Measurement

_SPREAD = 0.03  # relative standard deviation between runs of one configuration, assumed until it is measured
_ANSWERED = 0.95  # if a server answers at least this share of the arriving requests, the arrivals limit the throughput
_SEARCHED = (
    "the search looks for configurations that meet this limit; if none does, it recommends none, and reports the one "
    "that comes nearest"
)
_SAMPLE = 1000  # requests drawn to compute a load's rate
_RARELY = 0.05  # out-of-memory probabilities from this value on are reported


def preflight(job: Job, kb: Path) -> list[Finding]:
    """All findings, in the order a session would encounter them. Errors: AutoscoutError for a job without a space."""
    space = JobSpace.of_job(job)
    size = Finding(
        subject="space",
        ok=True,
        found=f"{several(space.count, 'configuration')}; compared with {space.name(space.reference) or PLAIN}",
    )
    if job.traffic.segments:
        return [size, _segments(job)]
    known = [m for _, m in store.measurements(kb, job=job.id, cluster=cluster_name(job))] if kb.exists() else []
    predicted, run_s = ([], 0.0) if target_of(job).designs else _predicted(job, space, kb)
    return [
        size,
        *(Finding(subject="note", ok=None, found=text) for text in target_of(job).notes_on_job(job)),
        *_environment(job),
        *_guessed_step(job, known),
        *_model_folder(job),
        *_constraints(job, known),
        *(
            []
            if target_of(job).designs
            else [_devices(job, _is_predicted(predicted)), *predicted, _noise(job, known), _time(space, known, run_s)]
        ),
    ]


def _segments(job: Job) -> Finding:
    """The only finding about a load of segments, since nothing will be run under it."""
    return Finding(
        subject="segments",
        ok=True,
        found=f"{len(job.traffic.segments)} traces for `autoscout predict`; to measure, give one as traffic.trace",
    )


def _environment(job: Job) -> list[Finding]:
    try:
        environment = profiler_of(job).environment()
        fit = target_of(job).fit(job, environment)
    except AutoscoutError as error:
        return [Finding(subject="runs on", ok=False, found=str(error), needed=True)]
    return [Finding(subject="runs on", ok=True, found=in_words(environment), needed=True), *engine(fit)]


def _is_predicted(predicted: list[Finding]) -> bool:
    return not any(found.subject == "predicted" and found.ok is None for found in predicted)


def _devices(job: Job, predicted: bool) -> Finding:
    wanted = spelled(job)
    if device_kind(job) == "cpu":
        busy = busy_now(job)
        return Finding(
            subject="devices", ok=None if busy else True, found="; ".join(filter(None, [f"{wanted} (CPU ranks)", busy]))
        )
    if job.cluster.hosts:
        return Finding(subject="devices", ok=None, found=f"the job needs {wanted}, on the hosts of {job.cluster.hosts}")
    kind, count = here()
    remedy = "correct cluster.nodes, or run AutoScout on a machine that has those devices"
    if not count:
        remedy = "`autoscout tune JOB.toml --as slurm` (or jobset) prints a script that runs the session there"
        remedy += ", once the job has cluster.hosts = 'slurm' (or 'ray')" if len(job.cluster.nodes) > 1 else ""
        alone = "; without the devices, `autoscout predict JOB.toml --best 10` ranks configurations by prediction alone"
        remedy += alone if predicted else ""
    enough = count >= max(node.count for node in job.cluster.nodes)
    return Finding(
        subject="devices",
        ok=enough,
        found=f"the job needs {wanted}; this machine has {f'{count} {kind}' if count else 'no GPU'}",
        remedy="" if enough else remedy,
    )


def _guessed_step(job: Job, known: list[Measurement]) -> list[Finding]:
    """Warns if `init` guessed the pattern of the log lines of a training step: with a wrong pattern, something else
    would be measured."""
    guesses = [name for name, of in job.launch.metrics.items() if getattr(of, "between", "") == GUESSED_STEP]
    if not guesses:
        return []
    ran = next((m for m in known if m.status == "ok" and m.iterations_s), None)
    if ran is None:
        found = f"launch.metrics.{guesses[0]}: the pattern for a step's line is a guess, and no run has confirmed it"
        remedy = "run it once with `autoscout profile JOB.toml`, and compare its step times with the script's own log"
        return [Finding(subject="step", ok=False, found=found, remedy=remedy, needed=True)]
    took = statistics.median(ran.iterations_s)
    found = (
        f"with a guessed pattern, the run had {len(ran.iterations_s)} steps of {_figure(took)} s; compare these with "
        "the script's own log"
    )
    return [Finding(subject="step", ok=None, found=found)]


def _model_folder(job: Job) -> list[Finding]:
    folder = job.launch.model_path
    if not folder or job.cluster.hosts or Path(folder).exists():
        return []
    remedy = "correct the path, or run AutoScout on a machine that has the model"
    return [Finding(subject="model", ok=False, found=f"{folder} is not on this machine", remedy=remedy, needed=True)]


def _constraints(job: Job, known: list[Measurement]) -> list[Finding]:
    roomiest = max((capacity(node) for node in job.cluster.nodes), default=0.0) or math.inf
    reported = {name for m in known for name in m.metrics} | set(target_of(job).metrics(job))
    found = []
    for text in job.objective.constraints:
        metric, compare, bound = constraint(text)
        reports = not reported or metric in reported
        if metric == "peak_memory_gib" and compare == "<=" and bound > roomiest:
            why = f"{text}: no device has more than {roomiest:.1f} GiB, so this limit has no effect"
            found.append(Finding(subject="constraint", ok=False, found=why, remedy="check that the limit is in GiB"))
            continue
        found.append(
            Finding(
                subject="constraint",
                ok=reports,
                found=f"{text}: {'is reported' if reports else f'no run reports {metric}'}",
                needed=True,
            )
        )
    return found


def _predicted(job: Job, space: JobSpace, kb: Path) -> tuple[list[Finding], float]:
    """(findings on the memory and objective predicted for the reference configuration, predicted seconds of a run
    without its start)."""
    from autoscout.tuning.predict import predict

    try:
        prediction = predict(space, {}, kb)
    except AutoscoutError as error:
        if error.exit_code == 3:
            if job.objective.metric == HIGHEST_RATE:
                return [Finding(subject="predicted", ok=False, found=str(error), remedy=_SEARCHED)], 0.0
            return [Finding(subject="memory", ok=False, found=str(error))], 0.0
        return [_memory(space, None), Finding(subject="predicted", ok=None, found=str(error))], 0.0
    error = (
        f"the expected error of the prediction is {prediction.expected_error:.0%}"
        if math.isfinite(prediction.expected_error)
        else ""
    )
    between = f"{_figure(prediction.value)} ({_figure(prediction.low)} to {_figure(prediction.high)})"
    sentence = f"{prediction.metric} of the reference {between}; {error}".removesuffix("; ")
    hopeless = (
        prediction.metric == "step_time_s"
        and prediction.low * (job.launch.warmup + LEAST_ITERATIONS) > job.launch.timeout_s
    )
    remedy = f"too slow for launch.timeout_s = {job.launch.timeout_s:g}: raise it, or use other devices"
    finding = Finding(subject="predicted", ok=not hopeless, found=sentence, remedy=remedy if hopeless else "")
    broken = [
        Finding(
            subject="constraint",
            ok=False,
            found=(
                f"{b.text}: the prediction for the reference is {_figure(b.value)} ({_figure(b.low)} to "
                f"{_figure(b.high)})"
            ),
            remedy=_SEARCHED,
        )
        for b in prediction.bounds
        if not b.kept
    ]
    network = [Finding(subject="network", ok=True, found=prediction.network)] if prediction.network else []
    found = [
        _memory(space, prediction.memory),
        finding,
        *_all_answered(job, prediction.metric, prediction.value),
        *broken,
        *network,
    ]
    return found, target_of(job).run_s(job, prediction.metric, prediction.value)


def _all_answered(job: Job, metric: str, value: float) -> list[Finding]:
    """Warns if requests arrive at a fixed rate and the reference answers nearly all of them, so no gain is possible."""
    traffic = job.traffic
    if traffic.concurrency or traffic.sessions or not (traffic.rate or traffic.trace):
        return []
    asked = of_traffic(traffic, requests=_SAMPLE)
    rate = (len(asked) - 1) / max(float(asked.arrival_s[-1]), 1e-9)
    tokens = {"output_tokens_per_s": asked.output_len, "total_tokens_per_s": asked.input_len + asked.output_len}
    of_each = {"requests_per_s": 1.0, "goodput_rps": 1.0} | {name: float(n.mean()) for name, n in tokens.items()}
    most = rate * of_each.get(metric, math.inf)
    if value < _ANSWERED * most:
        return []
    return [
        Finding(
            subject="load",
            ok=False,
            found=f"requests arrive so rarely that {_figure(most)} {metric} is the maximum for any configuration",
            remedy='maximize = "max_rate_rps" with limits on latencies, minimize a latency, or raise traffic.rate',
        )
    ]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _memory(space: JobSpace, predicted: PredictedMemory | None) -> Finding:
    job = space.job
    if predicted is None:
        cpu = device_kind(job) == "cpu"
        unknown = target_of(job).untold(job) or ("no [model]" if not job.model.layers else "")
        why = unknown or ("CPU ranks" if cpu else f"no simulator models the memory of {job.target}")
        if not cpu and job.task == "serve" and job.target != "vllm" and not unknown:
            why = "an engine takes the share of a GPU's memory that its launch line sets"
        if not cpu and job.target == "vllm":
            why = (
                "an engine takes the share of a GPU's memory that gpu_memory_utilization sets; the space has no "
                "configurations whose weights and one request exceed it"
            )
        return Finding(subject="memory", ok=None, found=f"not estimated: {why}")
    room = "" if predicted.device_gib is None else f" of {predicted.device_gib:.1f} GiB"
    if predicted.device_gib is None or predicted.oom_probability >= _RARELY:
        room += f"; the probability of running out of memory is {predicted.oom_probability:.0%}"
    fits = not predicted.oom_probability > 0.5
    return Finding(
        subject="memory",
        ok=fits,
        found=f"the reference takes {predicted.gib:.1f} GiB ({predicted.low:.1f} to {predicted.high:.1f}){room}",
        remedy="" if fits else beside_engine(space, space.reference) or fits_nowhere(space),
    )


def _noise(job: Job, known: list[Measurement]) -> Finding:
    """The smallest gain that the job's number of repeats can prove (95 % interval of the ratio above 1)."""
    spread = spread_of(job, known)
    pairs = max(2, job.launch.repeats)
    half = quantile(1.0, pairs - 1) * math.sqrt(2) * (spread or _SPREAD) / math.sqrt(pairs)
    if spread is None:
        found = f"not measured yet; if runs vary by {_SPREAD:.0%}, {pairs} repeats can prove a gain of {half:.0%}"
        return Finding(subject="noise", ok=None, found=found)
    return Finding(
        subject="noise",
        ok=half < 0.1,
        found=f"a gain of {half:.0%} can be proven with {pairs} repeats, because runs vary by {spread:.1%}",
        remedy="" if half < 0.1 else "raise launch.repeats to prove smaller gains",
    )


def spread_of(job: Job, known: list[Measurement]) -> float | None:
    """Relative standard deviation between runs of one configuration; None if no configuration was measured twice."""
    by_id: dict[str, list[float]] = {}
    for m in known:
        if (c := cost(job.objective, m)) is not None:
            by_id.setdefault(m.context + m.configuration.id, []).append(math.log(c))
    repeated = [statistics.variance(values) for values in by_id.values() if len(values) > 1]
    return math.sqrt(statistics.fmean(repeated)) if repeated else None


def _time(space: JobSpace, known: list[Measurement], run_s: float) -> Finding:
    """The duration of a session. `run_s`: predicted seconds of one run after its start, 0 if unknown."""
    job, searched = space.job, min(space.job.budget.profiles, space.count)
    finalists, repeats = min(FINALISTS + 1, space.count), job.launch.repeats
    took = [m.cost_s for m in known if m.cost_s]
    each = statistics.median(took) if took else None
    wall = seconds(job.budget.wall)
    if each is None:
        every = (searched + finalists * most_rounds(repeats, searched)) * job.launch.timeout_s
        late = wall + job.launch.timeout_s  # the last experiment may take longer than those before it
        found = f"about {several(max(1, round(min(every, late) / 60)), 'minute')} if every run takes launch.timeout_s"
        found += (
            " and all rounds are needed"
            if every <= late
            else f": budget.wall = {job.budget.wall}, then the end of the running experiment"
        )
        if run_s:
            runs = searched + finalists * repeats
            minutes = several(max(1, round(runs * min(run_s, job.launch.timeout_s) / 60)), "minute")
            found = f"{minutes} of measuring are predicted, plus {several(runs, 'start')}; {found}"
        if device_kind(job) != "cpu" and job.launch.timeout_s <= LaunchSettings().timeout_s:
            remedy = (
                f"launch.timeout_s = {job.launch.timeout_s:g} includes the start, but loading and compiling a large "
                f"model and recording CUDA graphs takes minutes: write timeout_s = {GPU_TIMEOUT_S}"
            )
            return Finding(subject="time", ok=False, found=found, remedy=remedy)
        return Finding(subject="time", ok=None, found=found)
    whole = (searched + finalists * repeats) * each
    minutes = several(max(1, round(min(whole, wall) / 60)), "minute")
    runs = f"{searched} runs of the search and {finalists * repeats} runs that confirm the winner, {each:.0f} s each"
    found = (
        f"about {minutes}: {runs}"
        if whole <= wall
        else f"{minutes} (budget.wall = {job.budget.wall}), too few for {runs}"
    )
    return Finding(subject="time", ok=True, found=found)
