"""Landscapes to develop and judge the search on: measured tables, and an analytic model of the fixtures' jobs.

The analytic model is made for this purpose only: it has the features that make a landscape hard (tile and wave
quantisation, bubbles, exposed communication, memory that runs out, 2 % that no knob explains), not calibrated ones.
Two simulators of it have the same physics with wrong constants: "good" (rank correlation above 0.9) and "biased".
"""

import csv
import gzip
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.space.graph import Space
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import Configuration, Objective, SpaceLimits, Value

TABLES = Path("../shared/data/landscapes")


@dataclass
class Landscape:
    """`cost`: (n,) of the rows of `space.feasible`, inf where it fails."""

    name: str
    space: Space
    cost: np.ndarray
    default: Configuration | None = None
    simulators: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def best(self) -> float:
        return float(self.cost.min())


# ---- tables -----------------------------------------------------------------------------------------------------


def vtrain(
    group: tuple[str, ...] = ("layers", "hidden", "n_gpus", "global_batch"), at_least: int = 8
) -> list[Landscape]:
    rows = _read("vtrain_a100_single_node")
    rows.sort(key=lambda r: [float(r[g]) for g in group])
    found = []
    for key, members in itertools.groupby(rows, key=lambda r: tuple(r[g] for g in group)):
        measured = list(members)
        knobs = [k for k in ("global_batch", "micro_batch", "tp", "pp", "dp") if k not in group]
        if len(measured) >= at_least:
            column = "iteration_time_s" if "global_batch" in group else "s_per_sample"
            found.append(_table(f"vtrain {'/'.join(key)}", measured, ["tp", "pp", "dp"], knobs[:-3], column))
    return found


def convolution() -> Landscape:
    rows = _read("kt_convolution_milo_A100")
    dense = ["block_size_x", "block_size_y", "tile_size_x", "tile_size_y"]
    return _table("kt_convolution", rows, ["read_only", "use_padding", "use_shmem"], dense, "time_ms")


def gemm() -> Landscape:
    rows = _read("kt_gemm_RTX_3060_laptop")
    dense = ["MWG", "NWG", "MDIMC", "NDIMC", "MDIMA", "NDIMB", "VWM", "VWN"]
    return _table("kt_gemm", rows, ["SA", "SB"], dense, "time_ms")


def postgresql() -> Landscape:
    sparse = ["fsync", "synchronousCommit", "fullPageWrites", "trackActivities", "trackCounts"]
    dense = ["SharedBuffers", "TempBuffers", "WorkMem"]
    return _table("PostgreSQL", _read("moot_PostgreSQL"), sparse, dense, "Performance-")


def storm() -> Landscape:
    dense = ["Max_spout", "Sorters", "Emit_freq", "Chunk_size", "Message_size"]
    return _table("SS-J", _read("moot_SS-J"), ["Spouts"], dense, "Throughput+", maximize=True)


def _read(name: str) -> list[dict[str, str]]:
    with gzip.open(TABLES / f"{name}.csv.gz", "rt") as file:
        return list(csv.DictReader(file))


def _table(
    name: str, rows: list[dict[str, str]], sparse: list[str], dense: list[str], column: str, maximize: bool = False
) -> Landscape:
    """One row a configuration, the median of its repeats."""
    knobs: list[dict[str, Value]] = [{k: _number(row[k]) for k in (*sparse, *dense)} for row in rows]
    metric = column.rstrip("+-").lower()
    objective = Objective(maximize=metric) if maximize else Objective(minimize=metric)
    space = Space.from_table(knobs, sparse, dense, objective)
    values: list[list[float]] = [[] for _ in range(len(space.feasible))]
    for assignment, row in zip(knobs, rows, strict=True):
        i = space.feasible.index(Configuration({k.name: assignment[k.name] for k in space.knobs}))
        assert i is not None
        ok = row.get("status", "ok") == "ok" and row[column]
        values[i].append(float(row[column]) if ok else np.inf)
    cost = np.array([np.median(v) for v in values])
    return Landscape(name, space, 1 / cost if maximize else cost)


def _number(text: str) -> Value:
    value = float(text)
    return int(value) if value == int(value) else value


# ---- the analytic model -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Physics:
    """The constants in which the truth and its simulators differ. Rates per device: flop/s, bytes/s; seconds."""

    a100: float = 220e12
    a40: float = 95e12
    memory_rate: float = 1.4e12
    link: float = 170e9
    between: float = 9e9
    latency: float = 22e-6
    quantised: bool = True
    overlap: float = 0.75
    ar_cost: float = 0.33
    launch: float = 12e-6


TRUTH = Physics()
GOOD = Physics(a100=240e12, a40=105e12, link=200e9, between=11e9, latency=12e-6, overlap=0.85, launch=8e-6)
BIASED = Physics(
    a100=290e12, a40=149e12, link=300e9, between=24e9, latency=3e-6, quantised=False, overlap=1.0, ar_cost=0.2, launch=0
)


def job(name: str, changed: dict[str, Any] | None = None, **limit: list[Any]) -> Landscape:
    """The model of fixtures/jobs/<name>.toml; `changed`: fields of its model and traffic; `limit` narrows the space."""
    loaded = load_job(f"fixtures/jobs/{name}.toml")
    given = changed or {}
    model = {k: v for k, v in given.items() if k in loaded.model.__struct_fields__}
    traffic = {k: v for k, v in given.items() if k not in model}
    loaded = msgspec.structs.replace(
        loaded,
        model=msgspec.structs.replace(loaded.model, **model),
        traffic=msgspec.structs.replace(loaded.traffic, **traffic),
        space=SpaceLimits(limit=limit),
    )
    space = JobSpace.of_job(loaded)
    columns = space.feasible.columns()
    quirk = np.random.default_rng(7).normal(0, 0.02, len(space.feasible))  # rows have a fixed order
    cost = step_time(space.attributes, columns, TRUTH) * np.exp(quirk)
    short = memory_gib(space.attributes, columns) > np.where(columns["a40"] > 0, 44, 76)
    simulators = {
        "good": step_time(space.attributes, columns, GOOD),
        "biased": step_time(space.attributes, columns, BIASED),
    }
    title = "".join(
        [
            name,
            *(
                f" {knob} {','.join(map(str, values if isinstance(values, list) else [values]))}"
                for knob, values in {**given, **limit}.items()
            ),
        ]
    )
    return Landscape(title, space, np.where(short, np.inf, cost), space.reference, simulators)


def step_time(a: dict[str, Any], k: dict[str, np.ndarray], c: Physics) -> np.ndarray:
    """Seconds of one training step, (n,)."""
    tp, pp, cp, dp, mbs, vpp = (k[n].astype(float) for n in ("tp", "pp", "cp", "dp", "mbs", "vpp"))
    ep, etp = k["ep"].astype(float), k["etp"].astype(float)
    micro = a["global_batch"] / (mbs * dp)
    tokens = mbs * a["seq_len"] / cp
    mixed = k["a40"] > 0  # the slowest stage sets the pace
    rate = np.where(mixed, c.a40, c.a100)
    nodes = np.where((k["a100"] > 0) & mixed, 2.0, 1.0)
    sms = np.where(mixed, 84.0, 108.0)
    on = np.where(k["tp_comm_overlap"].astype(bool), np.nan_to_num(k["tp_comm"].astype(float), nan=0.0), 0.0)

    def gemm(m: np.ndarray, n: np.ndarray, depth: np.ndarray) -> np.ndarray:
        waves = np.ceil(m / 128) * np.ceil(n / 128) / (sms - on) if c.quantised else m * n / 128**2 / (sms - on)
        waves = np.ceil(waves) if c.quantised else np.maximum(waves, 0.3)
        per_wave = 2 * 128 * 128 * depth * sms / rate
        traffic = 2 * (m * depth + n * depth + m * n) / c.memory_rate
        return np.maximum(waves * per_wave, traffic) + c.launch

    hidden, ones = a["hidden"] * np.ones_like(tp), np.ones_like(tp)
    attention = gemm(tokens, hidden * (1 + 2 * a["kv_heads"] / a["heads"]) / tp, hidden) + gemm(
        tokens, hidden, hidden / tp
    )
    scores = 4 * tokens * a["seq_len"] * a["hidden"] / tp / (0.45 * rate) * (1 + 0.15 * (cp > 1))
    if a["experts"]:
        local = tokens * a["topk"] / (a["experts"] / ep) * (ep / np.maximum(ep, 1))
        skew = 1 + 0.1 * np.log2(ep)
        mlp = (a["experts"] / ep) * (gemm(local, 2 * a["expert_ffn"] * ones / etp, hidden) + c.launch) * skew
        exchange = tokens * a["topk"] * hidden * 2 / c.link
        gathered = np.where(k["dispatcher"] == "allgather", 0.5 * ep, (ep - 1) / ep)
        mlp = mlp + np.where(ep > 1, 2 * exchange * gathered + c.latency * np.log2(ep + 1), 0)
    else:
        mlp = gemm(tokens, 2 * a["ffn"] * ones / tp, hidden) + gemm(tokens, hidden, a["ffn"] * ones / tp)
    pointwise = 14 * tokens * hidden / np.where(k["sp"].astype(bool), tp, 1) * 2 / c.memory_rate
    compute = attention + scores + mlp + pointwise
    volume = 2 * tokens * hidden * 2 * (tp - 1) / tp / np.where(tp > 8, c.between, c.link)
    tp_time = np.where(tp > 1, 2 * volume + 2 * c.latency * np.where(k["sp"].astype(bool), 2, 1), 0)
    hidden_share = np.where(on > 0, c.overlap * (1 - np.exp(-(on - 8) / 5)), 0)
    tp_time = tp_time * (1 - hidden_share)
    cp_time = np.where(
        cp > 1, np.maximum(0, tokens * hidden * 2 * (cp - 1) / c.link - 0.5 * scores) + (cp - 1) * c.latency, 0
    )
    again = np.where(k["ar"] == "full", c.ar_cost, np.where(k["ar"] == "selective", 0.25 * scores / (3 * compute), 0))
    full_share = np.where(
        k["ar_method"] == "block", np.nan_to_num(k["ar_layers"].astype(float), nan=0) * pp / a["layers"], 1
    )
    again = np.where(k["ar"] == "full", again * np.minimum(full_share, 1), again)
    layer = compute * (3 + 3 * again) + tp_time * (2 + again) + 2 * cp_time
    head = 3 * gemm(tokens, a["vocab"] * ones / tp, hidden)
    stage = layer * a["layers"] / pp + head / np.maximum(pp / 2, 1)
    p2p = np.where(pp > 1, tokens * hidden * 2 / np.where(nodes > 1, c.between, c.link) + c.latency, 0) * vpp
    p2p = p2p * np.where(k["overlap_p2p"].astype(bool), 1 - 0.8 * c.overlap, 1)
    pipeline = micro * (stage + 2 * p2p) + (pp - 1) / vpp * stage
    gradients = (a["params"] - a["expert_params"]) / (tp * pp) + a["expert_params"] / (ep * etp * pp)
    wire = np.where(nodes > 1, c.between, c.link)
    reduce = np.where(dp * cp > 1, 2 * gradients * 4 * (dp * cp - 1) / (dp * cp) / wire, 0)
    bucket = np.nan_to_num(k["ddp_bucket"].astype(float), nan=64.0) * 2**20
    pieces = np.ceil(gradients * 4 / bucket)
    reduce = reduce + np.where(dp > 1, pieces * c.latency, 0)
    overlapping = k["overlap_grad"].astype(bool)
    exposed = np.maximum(reduce * (1 - c.overlap), reduce - 0.5 * stage * np.minimum(micro, 2)) + bucket / wire
    reduce = np.where(overlapping, np.minimum(exposed, reduce + 2 * bucket / wire), reduce)
    sharded = k["distopt"].astype(bool)
    gather = np.where(sharded, gradients * 2 / wire * np.where(k["overlap_param"].astype(bool), 1 - c.overlap, 1), 0)
    update = gradients * 16 / c.memory_rate / np.where(sharded, dp * cp, 1)
    return pipeline + reduce + gather + update


def memory_gib(a: dict[str, Any], k: dict[str, np.ndarray]) -> np.ndarray:
    tp, pp, cp, dp, mbs, vpp = (k[n].astype(float) for n in ("tp", "pp", "cp", "dp", "mbs", "vpp"))
    weights = (a["params"] - a["expert_params"]) / (tp * pp) + a["expert_params"] / (k["ep"] * k["etp"] * pp)
    state = weights * (6 + 12 / np.where(k["distopt"].astype(bool), dp * cp, 1))
    tokens = mbs * a["seq_len"] / cp
    spread = np.where(k["sp"].astype(bool), tp, 1)
    layer = tokens * a["hidden"] * (10 / spread + 24 / tp) + np.where(
        k["ar"] == "none", 5 * a["heads"] * a["seq_len"] * tokens / tp / cp / 4, 0
    )
    full = k["ar"] == "full"
    kept = np.where(
        full & (k["ar_method"] == "block"), np.maximum(0, 1 - k["ar_layers"].astype(float) * pp / a["layers"]), 0
    )
    layer = np.where(full, 2 * tokens * a["hidden"] / spread + kept * layer, layer)
    in_flight = np.minimum(a["global_batch"] / (mbs * dp), pp * (1 + (vpp > 1) * (pp - 1) / (pp * vpp)))
    logits = tokens * a["vocab"] / tp * 6
    return (state + layer * a["layers"] / pp * in_flight + logits) / 2**30 * 1.06 + 1.5


# ---- made up -----------------------------------------------------------------------------------------------------


def kernel(seed: int, count: int = 8_000) -> Landscape:
    """Like a GPU kernel's: tiles and vectors whose products decide on occupancy, cliffs, interactions of a few knobs,
    and configurations that need more shared memory than there is."""
    rng = np.random.default_rng(seed)
    levels = [int(n) for n in rng.integers(2, 7, size=9)]
    grid = np.array(list(itertools.product(*[range(n) for n in levels[:9]])))
    grid = grid[np.sort(rng.choice(len(grid), min(count, len(grid)), replace=False))]
    x = grid / np.maximum(np.array(levels) - 1, 1)
    log = x @ rng.normal(0, 0.2, 9) + ((x - rng.random(9)) ** 2) @ np.abs(rng.normal(0, 0.5, 9))
    for a, b in rng.choice(9, (8, 2)):
        table = rng.normal(0, 0.12, (levels[a], levels[b]))  # a cliff may be anywhere
        log += table[grid[:, a], grid[:, b]]
    occupancy = grid[:, [0, 1, 2]].sum(axis=1) + rng.normal(0, 0.2)
    log += 0.2 * np.abs(np.ceil(occupancy / 2) - 2)
    log += rng.normal(0, 0.04, len(log))
    fails = grid[:, [0, 1, 3]].sum(axis=1) > 0.75 * (np.array(levels)[[0, 1, 3]] - 1).sum()
    rows: list[dict[str, Value]] = [{f"k{i}": int(2**c) for i, c in enumerate(row)} for row in grid]
    names = [f"k{i}" for i in range(9)]
    sparse = [n for n, count in zip(names, levels, strict=True) if count == 2]
    space = Space.from_table(rows, sparse, [n for n in names if n not in sparse], Objective(minimize="time_ms"))
    cost = np.full(len(space.feasible), np.inf)
    for row, value, failed in zip(rows, np.exp(log), fails, strict=True):
        i = space.feasible.index(Configuration({k.name: row[k.name] for k in space.knobs}))
        assert i is not None
        cost[i] = np.inf if failed else value
    return Landscape(f"kernel {seed}", space, cost)


def serving(seed: int) -> Landscape:
    """Latency under load: it explodes where the server is too slow, and batching trades against it."""
    rng = np.random.default_rng(seed)
    domains = {
        "tp": [1, 2, 4, 8],
        "pp": [1, 2],
        "chunked": [0, 1],
        "max_num_seqs": [16, 32, 64, 128, 256, 512],
        "max_tokens": [512, 1024, 2048, 4096, 8192],
        "memory": [0.8, 0.85, 0.9, 0.95],
        "block": [8, 16, 32],
        "eager": [0, 1],
        "kv": ["auto", "fp8"],
    }
    rows = [dict(zip(domains, v, strict=True)) for v in itertools.product(*domains.values()) if v[0] * v[1] <= 8]
    k = {n: np.array([r[n] for r in rows]) for n in domains}
    replicas = 8 / (k["tp"] * k["pp"])
    kv = (80 * k["memory"] - 16 / (k["tp"] * k["pp"])) * k["tp"] * k["pp"] * np.where(k["kv"] == "fp8", 2, 1) / 0.13
    batch = np.minimum(k["max_num_seqs"], kv / rng.uniform(1.0, 1.6))
    step = (12 / k["tp"] ** 0.8 + 1.2 * np.log2(k["tp"]) + 2 * (k["pp"] - 1) + 0.035 * batch / k["tp"] ** 0.7) * 1e-3
    step *= np.where(k["eager"] == 1, 1.35, 1.0) * np.where(k["block"] == 8, 1.04, 1.0)
    step *= np.where(k["chunked"] == 1, 1 + 80 / k["max_tokens"], 1.06)
    capacity = replicas * batch / step / 210
    load = rng.uniform(14, 30) / capacity
    wait = np.where(load < 0.97, load / (1 - np.minimum(load, 0.97)), 40 + 300 * (load - 0.97))
    prefill = 462 / np.minimum(k["max_tokens"], 4096) * 0.12 / k["tp"] ** 0.7
    latency = (210 * step + prefill + 0.4 * wait * step * 20) * np.exp(rng.normal(0, 0.02, len(rows)))
    sparse = ["tp", "pp", "chunked", "eager", "kv", "block"]
    space = Space.from_table(rows, sparse, ["max_num_seqs", "max_tokens", "memory"], Objective(minimize="e2e_s"))
    cost = np.full(len(space.feasible), np.inf)
    for row, value, room in zip(rows, latency, kv, strict=True):
        i = space.feasible.index(Configuration({q.name: row[q.name] for q in space.knobs}))
        assert i is not None
        cost[i] = value if room > 60 else np.inf
    return Landscape(f"serving {seed}", space, cost)


def stages(seed: int) -> Landscape:
    """Throughput of a chain of stages: the slowest decides, a buffer that is too small starves it, and what is good for
    one stage costs another. Ranges over orders of magnitude."""
    rng = np.random.default_rng(seed)
    levels = [int(n) for n in rng.choice([2, 3, 4, 5, 6, 8], 6)]
    rows = list(itertools.product(*[range(n) for n in levels]))
    x = np.array(rows) / (np.array(levels) - 1)
    stage = []
    for _ in range(4):
        weights = rng.normal(0, 1.5, 6) * (rng.random(6) < 0.5)
        a, b = rng.choice(6, 2, replace=False)
        bend = -rng.uniform(0, 4) * (x[:, a] - x[:, b] * rng.uniform(0, 1)) ** 2
        stage.append(x @ weights + bend + rng.normal(0, 0.7))
    log = -np.logaddexp.reduce([-4 * s for s in stage], axis=0) / 4 + rng.normal(0, 0.03, len(rows))
    log -= np.where((x[:, 0] > 0.8) & (x[:, 1] < 0.3), rng.uniform(1, 4), 0)
    table: list[dict[str, Value]] = [{f"k{i}": int(10 * 2**c) for i, c in enumerate(row)} for row in rows]
    space = Space.from_table(table, ["k0"], [f"k{i}" for i in range(1, 6)], Objective(maximize="per_s"))
    cost = np.full(len(space.feasible), np.inf)
    for row, value in zip(table, np.exp(-log), strict=True):
        i = space.feasible.index(Configuration({k.name: row[k.name] for k in space.knobs}))
        assert i is not None
        cost[i] = value
    return Landscape(f"stages {seed}", space, cost)


# ---- sets -------------------------------------------------------------------------------------------------------

MIXTURE = {"layers": 32, "hidden": 4096, "ffn": 14336, "experts": 16, "topk": 2, "expert_ffn": 4096, "preset": ""}

Make = Callable[[list[str]], list[Landscape]]


def _named(title: str, make: Callable[[], Landscape | list[Landscape]]) -> Make:
    """Made only where one of the wanted names is in its title (or none is wanted)."""

    def made(wanted: list[str]) -> list[Landscape]:
        if wanted and not any(part in title for part in wanted):
            return []
        found = make()
        if isinstance(found, list):
            return found
        found.name = title
        return [found]

    return made


DESIGN: list[Make] = [
    _named("vtrain", lambda: vtrain()),
    _named("PostgreSQL", postgresql),
    _named("llama both", lambda: job("llama-3.2-3b")),
    _named("llama a100", lambda: job("llama-3.2-3b", a40=[0])),
    _named("llama a40", lambda: job("llama-3.2-3b", a100=[0])),
    _named("llama long", lambda: job("llama-3.2-3b", {"seq_len": 16384, "global_batch": 32}, a40=[0])),
    _named("mixture", lambda: job("qwen3-30b-a3b", MIXTURE, a40=[0], vpp=[1, 2], tp_comm=[12, 16, 20])),
    *(_named(f"kernel {seed}", lambda seed=seed: kernel(seed)) for seed in (1, 2, 3)),
    *(_named(f"serving {seed}", lambda seed=seed: serving(seed)) for seed in (1, 2)),
    *(_named(f"stages {seed}", lambda seed=seed: stages(seed)) for seed in (1, 2, 3)),
]
HELD_OUT: list[Make] = [
    _named("convolution", convolution),
    _named("gemm", gemm),
    _named("storm", storm),
    _named("nemotron", lambda: job("llama-3.1-nemotron-nano-8b")),
    _named("qwen", lambda: job("qwen3-30b-a3b", a40=[0])),
    _named("vtrain", lambda: vtrain(("layers", "hidden", "n_gpus"))),
]
