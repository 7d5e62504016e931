"""Generates any number of unseen landscapes from seeds, for the development and the evaluation of searches.

A *draw* chooses everything at random: the model's sizes, the number of devices, their rates and links, physical
constants, the knobs' values, the noise. All draws have the effects that make such landscapes hard: tile and wave
quantization, bubbles, exposed communication, limited memory (or an overloaded queue), inactive knobs, and a deviation
of 2 % per configuration that no knob explains. Nothing is calibrated or shared with simulate/.

    dense16, dense64    pretraining of a dense model on 8 to 24, or 32 to 128 devices
    moe16               of a mixture of experts on 8 to 24: most configurations run out of memory
    serving             mean latency of a server under load

Even draws are for development, odd ones are held out for the final evaluation. Simulators:

    perfect         all that knobs explain of the truth: what is left is each configuration's own
    good            the same physics, its constants up to a quarter off
    biased          without quantisation, latency and contention, with twice the rates and perfect overlap
    good+80         good with 80 % noise in each prediction
    constant, nan, negative, inverse    the same number for all; none; below zero; and the best taken for the worst

    python tests/tools/search_generated.py --of serving,moe16 --draws 0,2 --seeds 2 --with none,good autoscout gp-ei
"""

import argparse
import itertools
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoscout.search.belief.foreseen import MEMORY
from autoscout.space.graph import Space
from autoscout.studies.bench.landscape import Landscape
from autoscout.studies.bench.run import BenchSettings
from autoscout.studies.bench.run import run as bench_run
from kb.records import Objective, Value

OWN, NOISE = 0.02, 0.02
FAMILIES = ("serving", "dense64", "dense16", "moe16")
SIMULATORS = ("none", "perfect", "good", "biased", "good+80", "constant", "nan", "negative", "inverse")
Knobs = dict[str, np.ndarray]  # (n,) floats each; NaN: an inactive knob


@dataclass(frozen=True)
class Physics:
    """The constants in which the truth and its simulators differ."""

    rate: float  # attained FLOP/s of a device
    stream: float  # bytes/s of its memory
    link: float
    between: float  # bytes/s between nodes
    latency: float
    overlap: float
    launch: float
    skew: float
    quantised: bool = True


def physics(rng: np.random.Generator) -> Physics:
    return Physics(
        rate=float(10 ** rng.uniform(13.9, 14.7)),
        stream=float(10 ** rng.uniform(12.0, 12.5)),
        link=float(10 ** rng.uniform(10.6, 11.5)),
        between=float(10 ** rng.uniform(9.6, 10.6)),
        latency=float(10 ** rng.uniform(-5.1, -4.4)),
        overlap=float(rng.uniform(0.4, 0.9)),
        launch=float(10 ** rng.uniform(-5.3, -4.7)),
        skew=float(rng.uniform(0.05, 0.2)),
    )


def _good(p: Physics, rng: np.random.Generator) -> Physics:
    off = {f: getattr(p, f) * float(1.25 ** rng.uniform(-1, 1)) for f in ("rate", "stream", "link", "between")}
    off |= {f: getattr(p, f) * float(1.5 ** rng.uniform(-1, 1)) for f in ("latency", "launch", "skew")}
    return replace(p, overlap=min(p.overlap * float(1.15 ** rng.uniform(-1, 1)), 0.95), **off)


def _biased(p: Physics, rng: np.random.Generator) -> Physics:
    return replace(
        p,
        rate=1.6 * p.rate,
        link=2 * p.link,
        between=3 * p.between,
        latency=0.1 * p.latency,
        overlap=1.0,
        launch=0.0,
        skew=0.0,
        quantised=False,
    )


# ---- training ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv: int
    vocab: int
    seq: int
    batch: int
    devices: int
    gib: float
    experts: int = 0
    topk: int = 0


def _model(rng: np.random.Generator, devices: list[int], experts: bool) -> Model:
    hidden = int(rng.choice([2048, 3072, 4096, 5120] if not experts else [2048, 2560, 3072]))
    count = int(rng.choice(devices))
    return Model(
        layers=int(rng.choice([24, 32, 36, 40, 48])),
        hidden=hidden,
        ffn=int(hidden * rng.choice([2.75, 3.5, 4])) if not experts else int(hidden * rng.choice([0.375, 0.5])),
        heads=hidden // 128,
        kv=8,
        vocab=int(rng.choice([32000, 128256, 151936])),
        seq=int(rng.choice([2048, 4096, 8192])),
        batch=count * int(rng.choice([8, 16, 32])),
        devices=count,
        gib=float(rng.choice([40, 64, 80, 80])),
        experts=int(rng.choice([64, 128])) if experts else 0,
        topk=8 if experts else 0,
    )


def _divisors(n: int, most: int) -> list[int]:
    return [d for d in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if d <= most and n % d == 0]


def _layouts(m: Model) -> list[dict[str, int]]:
    found = []
    for tp, pp, other in itertools.product(
        [t for t in _divisors(m.heads, 8) if t <= 8], _divisors(m.layers, 16), [1, 2, 4, 8]
    ):
        cp, ep = (1, other) if m.experts else (other, 1)
        if m.devices % (tp * pp * cp) or (m.experts and ((m.devices // (tp * pp)) % ep or m.experts % ep)):
            continue
        dp = m.devices // (tp * pp * cp)
        for mbs, vpp in itertools.product([1, 2, 4, 8, 16], [1, 2, 4]):
            if m.batch % (dp * mbs) or (vpp > 1 and (pp == 1 or m.layers % (pp * vpp) or (m.batch // dp // mbs) % pp)):
                continue
            found.append({"tp": tp, "pp": pp, "cp" if not m.experts else "ep": other, "dp": dp, "mbs": mbs, "vpp": vpp})
    return found


def _training_knobs(m: Model, rng: np.random.Generator) -> Knobs:
    buckets = sorted(rng.choice([8, 16, 25, 50, 100, 200, 400], 4, replace=False).tolist())
    sms = sorted(rng.choice([4, 8, 12, 16, 20, 24, 32], 4, replace=False).tolist())
    rows = []
    for layout in _layouts(m):
        tp, dp = layout["tp"], layout["dp"]
        choices = {
            "sp": [0, 1] if tp > 1 else [np.nan],
            "ar": [0, 1, 2],
            "distopt": [0, 1] if dp > 1 else [np.nan],
            "overlap": [0, 1] if dp > 1 else [np.nan],
            "bucket": buckets if dp > 1 else [np.nan],
            "sms": sms if tp > 1 else [np.nan],
        }
        rows += [[*layout.values(), *v] for v in itertools.product(*choices.values())]
    names = [*_layouts(m)[0], "sp", "ar", "distopt", "overlap", "bucket", "sms"]
    table = np.array(rows, dtype=float)
    most = int(rng.integers(45_000, 110_000))
    if len(table) > most:  # drop whole layouts, so that the rest is still a grid
        layouts = np.unique(table[:, :6], axis=0, return_inverse=True)[1].ravel()
        kept = rng.permutation(layouts.max() + 1)[: int(most / len(table) * (layouts.max() + 1))]
        table = table[np.isin(layouts, kept)]
    return dict(zip(names, table.T, strict=True))


def _step(m: Model, k: Knobs, c: Physics) -> np.ndarray:
    tp, pp, dp, mbs, vpp = (k[n] for n in ("tp", "pp", "dp", "mbs", "vpp"))
    cp, ep = k.get("cp", np.ones_like(tp)), k.get("ep", np.ones_like(tp))
    micro = m.batch / (mbs * dp)
    tokens = mbs * m.seq / cp
    sms = np.nan_to_num(k["sms"], nan=0.0)
    left = 132.0 - np.where(tp > 1, sms, 0)

    def gemm(rows: np.ndarray, cols: Any, depth: Any) -> np.ndarray:
        tiles = np.ceil(rows / 128) * np.ceil(cols / 128) if c.quantised else rows * cols / 128**2
        waves = np.ceil(tiles / left) if c.quantised else tiles / 132.0
        traffic = 2 * (rows * depth + cols * depth + rows * cols) / c.stream
        return np.maximum(waves * 2 * 128 * 128 * depth * 132 / c.rate, traffic) + c.launch

    attention = gemm(tokens, m.hidden * (1 + 2 * m.kv / m.heads) / tp, m.hidden) + gemm(tokens, m.hidden, m.hidden / tp)
    scores = 4 * tokens * m.seq * m.hidden / tp / (0.5 * c.rate) * (1 + 2 * c.skew * (cp > 1))
    if m.experts:
        local = m.experts / ep
        each = tokens * m.topk / m.experts * (1 + c.skew * np.log2(ep + 1))
        mlp = local * (gemm(each, 3 * m.ffn / tp, m.hidden) + c.launch)
        mlp = mlp + np.where(
            ep > 1, 4 * tokens * m.topk * m.hidden * (ep - 1) / ep / c.link / 4 + 2 * c.latency * ep, 0
        )
    else:
        mlp = gemm(tokens, 2 * m.ffn / tp, m.hidden) + gemm(tokens, m.hidden, m.ffn / tp)
    plain = 16 * tokens * m.hidden * 2 / np.where(k["sp"] == 1, tp, 1) / c.stream
    compute = attention + scores + mlp + plain
    across = np.where(tp * cp > 8, c.between, c.link)
    volume = 2 * tokens * m.hidden * 2 * (tp - 1) / tp / across
    hidden = c.overlap * (1 - np.exp(-sms / 8)) * (k["sp"] == 1)
    comm = np.where(tp > 1, 2 * volume * (1 - hidden) + c.latency * (2 + 2 * (k["sp"] == 1)), 0)
    ring = np.where(cp > 1, np.maximum(0, 2 * tokens * m.hidden * (cp - 1) / cp / c.link - c.overlap * scores), 0)
    again = np.select([k["ar"] == 2, k["ar"] == 1], [1.0, 0.3 * scores / compute], 0.0)
    layer = compute * (3 + again) + comm * (2 + (k["ar"] == 2)) + 3 * (ring + c.latency * (cp - 1))
    head = 3 * gemm(tokens, m.vocab / tp, m.hidden)
    stage = layer * m.layers / pp + head / np.where(pp > 1, 1.5, 1)
    nodes = np.where(tp * cp * dp >= 8, c.between, c.link)
    send = np.where(pp > 1, (tokens * m.hidden * 2 / nodes + c.latency) * vpp, 0)
    pipe = micro * (stage + 2 * send) + (pp - 1) / vpp * stage
    weights = _weights(m, tp, pp, ep)
    wire = np.where(tp * cp * dp > 8, c.between, c.link)
    reduce = np.where(dp * cp > 1, 2 * weights * 4 * (dp * cp - 1) / (dp * cp) / wire, 0)
    bucket = np.nan_to_num(k["bucket"], nan=50) * 2**20
    reduce = reduce + np.where(dp > 1, weights * 4 / bucket * c.latency * 2, 0)
    late = np.maximum((1 - c.overlap) * reduce, reduce - 0.5 * stage) + 2 * bucket / wire
    reduce = np.where(k["overlap"] == 1, np.minimum(late, reduce * 1.05), reduce)
    shards = np.where(k["distopt"] == 1, dp * cp, 1)
    gather = np.where(k["distopt"] == 1, weights * 2 / wire * (1 - c.overlap * (k["overlap"] == 1)), 0)
    return pipe + reduce + gather + 20 * weights / shards / c.stream


def _weights(m: Model, tp: np.ndarray, pp: np.ndarray, ep: np.ndarray) -> np.ndarray:
    attention = m.hidden * m.hidden * (2 + 2 * m.kv / m.heads) / tp
    mlp = 3 * m.hidden * m.ffn * (m.experts or 1) / (tp * ep)
    return m.layers / pp * (attention + mlp) + m.vocab * m.hidden / tp


def _memory_gib(m: Model, k: Knobs) -> np.ndarray:
    tp, pp, dp, mbs, vpp = (k[n] for n in ("tp", "pp", "dp", "mbs", "vpp"))
    cp, ep = k.get("cp", np.ones_like(tp)), k.get("ep", np.ones_like(tp))
    weights = _weights(m, tp, pp, ep)
    state = weights * (6 + 12 / np.where(k["distopt"] == 1, dp * cp / (ep if m.experts else 1), 1))
    tokens = mbs * m.seq / cp
    spread = np.where(k["sp"] == 1, tp, 1)
    wide = 1 + (2.0 * m.topk * m.ffn / m.hidden if m.experts else m.ffn / m.hidden)
    kept = tokens * m.hidden * (10 / spread + 8 * wide / tp) + np.where(k["ar"] == 0, 4 * tokens * m.hidden / tp, 0)
    kept = np.where(k["ar"] == 2, 2 * tokens * m.hidden / spread, kept)
    flight = np.minimum(m.batch / (mbs * dp), pp * (1 + (vpp > 1) * (pp - 1) / (pp * vpp)))
    return (state + kept * m.layers / pp * flight + 6 * tokens * m.vocab / tp) / 2**30 * 1.05 + 2


def training(draw: int, devices: list[int], experts: bool) -> "Drawn":
    attempt = -1
    while True:
        attempt += 1
        rng = np.random.default_rng((draw, attempt, len(devices), experts))
        m, truth = _model(rng, devices, experts), physics(rng)
        k = _training_knobs(m, rng)
        memory = _memory_gib(m, k) * np.exp(0.02 * rng.standard_normal(len(k["tp"])))
        share = float((memory > 0.96 * m.gib).mean())
        if len(memory) > 20_000 and (0.4 < share < 0.85 if experts else 0.08 < share < 0.5):
            break
    cost = np.where(memory > 0.96 * m.gib, np.nan, _step(m, k, truth))
    said = {"good": _step(m, k, _good(truth, rng)), "biased": _step(m, k, _biased(truth, rng))}
    expected = _memory_gib(m, k) > 1.05 * m.gib  # simulators predict configurations that clearly do not fit
    said = {name: np.where(expected, np.inf, value) for name, value in said.items()}
    text = f"{m.layers}×{m.hidden} {'experts ' if experts else ''}on {m.devices}"
    return Drawn(text, k, ["tp", "pp", "cp", "ep", "sp", "ar", "distopt", "overlap"], cost, said, rng, memory, m.gib)


# ---- serving ----------------------------------------------------------------------------------------------------


def serving(draw: int) -> "Drawn":
    attempt = -1
    while True:
        attempt += 1
        rng = np.random.default_rng((draw, attempt, 99))
        c = physics(rng)
        devices = int(rng.choice([4, 8, 16]))
        params = float(rng.choice([3e9, 8e9, 14e9]))
        prompt, answer = float(rng.uniform(300, 3000)), float(rng.uniform(80, 400))
        domains = {
            "tp": [1, 2, 4, 8],
            "pp": [1, 2, 4],
            "seqs": [16, 32, 64, 128, 256, 512],
            "tokens": [512, 1024, 2048, 4096, 8192, 16384],
            "chunked": [0, 1],
            "share": [0.7, 0.8, 0.85, 0.9, 0.95],
            "block": [8, 16, 32],
            "kv": [0, 1],
            "eager": [0, 1],
            "prefix": [0, 1],
            "steps": [1, 4, 8],
            "async": [0, 1],
        }
        rows = np.array(
            [v for v in itertools.product(*domains.values()) if v[0] * v[1] <= devices and devices % (v[0] * v[1]) == 0]
        )
        structures = np.unique(rows[:, [0, 1, 4, 7, 8, 9]], axis=0, return_inverse=True)[1].ravel()
        most = int(rng.integers(30_000, 60_000))
        if len(rows) > most:
            kept = rng.permutation(structures.max() + 1)[: int(most / len(rows) * (structures.max() + 1))]
            rows = rows[np.isin(structures, kept)]
        k = dict(zip(domains, rows.T, strict=True))
        load = float(rng.uniform(0.35, 0.75))
        cost, capacity = _latency(k, c, devices, params, prompt, answer, None, load)
        if np.isfinite(cost).mean() > 0.9:
            break
    good = _good(c, rng)
    said = {
        "good": _latency(k, good, devices, params, prompt, answer, capacity * 1.03, load)[0],
        "biased": _latency(k, _biased(c, rng), devices, params, prompt, answer, capacity * 1.0, load)[0],
    }
    names = ["tp", "pp", "chunked", "kv", "eager", "prefix", "async"]
    return Drawn(f"serving {params / 1e9:.0f}B on {devices}", k, names, cost, said, rng)


def _latency(
    k: Knobs, c: Physics, devices: int, params: float, prompt: float, answer: float, arrivals: Any, load: float
) -> tuple[np.ndarray, float]:
    """(mean seconds of a request, requests per second): the given rate, else `load` times the best capacity."""
    tp, pp = k["tp"], k["pp"]
    replicas = devices / (tp * pp)
    room = 80e9 * k["share"] * tp * pp - 2.1 * params
    cached = room / (2e5 * (params / 8e9) ** 0.7 * np.where(k["kv"] == 1, 0.55, 1.0)) * (1 - 0.002 * k["block"])
    batch = np.maximum(np.minimum(k["seqs"], cached / (prompt + answer)), 0.5)
    weights = 2 * params / (tp * c.stream)
    attend = batch * (prompt + answer / 2) * 2e5 * np.where(k["kv"] == 1, 0.6, 1.0) / (tp * pp * c.stream)
    reduce = np.where(tp > 1, 64 * (c.latency * np.log2(tp + 1) + batch * 8192 / c.link), 0)
    host = 0.004 * np.where(k["async"] == 1, 0.5, 1.0) / k["steps"] ** 0.7 + 2e-5 * batch
    host = host + np.where(k["eager"] == 1, 80 * c.launch * 4, 0)
    decode = weights + attend + reduce + host + (pp - 1) * 20 * c.latency
    decode = decode * np.where(k["block"] == 8, 1.03, 1.0) * np.where(k["kv"] == 1, 1.02, 1.0)
    chunk = np.where(k["chunked"] == 1, np.minimum(k["tokens"], prompt), prompt)
    pieces = np.ceil(prompt / chunk) if c.quantised else prompt / chunk
    fill = 2 * params * prompt * np.where(k["prefix"] == 1, 0.8, 1.0) / (c.rate * tp**0.9 * pp) + pieces * (
        host + reduce
    )
    wait_tokens = np.where(k["chunked"] == 1, 0.0, fill * 0.4)
    slowed = decode * (1 + np.where(k["chunked"] == 1, k["tokens"] / 16384 * 0.5, 0.05)) * (1 + k["steps"] * 0.01)
    service = fill + answer * slowed + wait_tokens
    capacity = replicas * pp**0.6 * batch / service
    arrive = load * float(np.nanmax(capacity)) if arrivals is None else arrivals
    busy = arrive / capacity
    queue = np.where(busy < 0.97, busy**4 / (1 - np.minimum(busy, 0.97)), 0.97**4 / 0.03 + 300 * (busy - 0.97))
    return service + queue * service / np.maximum(batch, 1) * 4, arrive


# ---- as landscapes ----------------------------------------------------------------------------------------------


@dataclass
class Drawn:
    text: str
    knobs: Knobs
    sparse: list[str]
    cost: np.ndarray
    said: dict[str, np.ndarray]
    rng: np.random.Generator
    memory: np.ndarray | None = None  # (n,) GiB on the fullest device
    gib: float = 0.0  # memory of each device


def draw(family: str, number: int) -> Drawn:
    if family == "serving":
        return serving(number)
    devices = {"dense16": [8, 16, 24], "dense64": [32, 64, 96, 128], "moe16": [8, 16, 24]}[family]
    return training(number, devices, family == "moe16")


def landscape(
    family: str, number: int, dummies: int = 0, peaks: bool = False, priced: bool = False, looks: int = 0
) -> Landscape:
    """A draw with all simulators. `dummies`: additional knobs without effect; `peaks`: runs report peak memory;
    `priced`: costs of experiments are known; `looks`: as in `_device_s`."""
    drawn = draw(family, number)
    perfect = np.where(np.isfinite(drawn.cost), drawn.cost, np.inf)
    drawn.cost = drawn.cost * np.exp(OWN * drawn.rng.standard_normal(len(drawn.cost)))
    good = drawn.said["good"]
    some = np.isfinite(good)
    middle = float(np.median(good[some]))
    drawn.said |= {
        "perfect": perfect,
        "good+80": good * np.maximum(1 + 0.8 * drawn.rng.standard_normal(len(good)), 0.05),
        "constant": np.full(len(good), middle),
        "nan": np.full(len(good), np.nan),
        "negative": np.where(some, -good, -1.0),
        "inverse": np.where(np.isfinite(drawn.cost), middle**2 / drawn.cost, middle),
    }
    for i in range(dummies):
        drawn.knobs[f"dummy{i}"] = drawn.rng.integers(0, 4, len(good)).astype(float)
    columns = {n: [_value(v) for v in column.tolist()] for n, column in drawn.knobs.items()}
    sparse = [n for n in columns if n in drawn.sparse]
    space = Space.from_table(columns, sparse, [n for n in columns if n not in sparse], Objective(minimize="time_s"))
    names = [k.name for k in space.knobs]
    mine = np.stack([_codes(drawn.knobs[k.name], k.values) for k in space.knobs], axis=1)
    place = np.empty(len(mine), dtype=int)
    here, there = np.lexsort(mine.T), np.lexsort(space.feasible.codes.T)
    if not (mine[here] == space.feasible.codes[there]).all():
        raise ValueError(f"rows of {family} {number} are not unique in {names}")
    place[there] = here
    cost = drawn.cost[place]
    known = drawn.memory[place] if peaks and drawn.memory is not None else None
    fullness = None
    if known is not None:
        space.capacities = {"devices": drawn.gib}
        off = np.random.default_rng((number, 5)).standard_normal(len(known) + 1)
        fullness = np.log(known / drawn.gib) + 0.1 * off[0] + 0.03 * off[1:]
    return Landscape(
        name=f"{family} {number} ({drawn.text})",
        space=space,
        metric="time_s",
        goal="min",
        truth=cost,
        status=np.where(np.isfinite(cost), "ok", "oom").astype(object),
        cost=_device_s(cost, looks) if priced else None,
        simulators={name: values[place] for name, values in drawn.said.items()},
        peaks=None if known is None else lambda row, _: known[[row]],
        foreseen={} if fullness is None else {MEMORY: fullness},
    )


def _device_s(step: np.ndarray, looks: int = 0) -> np.ndarray:
    """(n,) seconds of an experiment, on all devices: a launch of 40 s, a warm-up and `looks` iterations (0: as many as
    take 8 s, at least 2 and at most 10)."""
    return 40 + np.nan_to_num((1 + (looks or np.clip(8 / step, 2, 10))) * step)


def _value(number: float) -> Value | None:
    return None if number != number else int(number) if number == int(number) else number


def _codes(column: np.ndarray, values: tuple[Value, ...]) -> np.ndarray:
    codes = np.searchsorted(np.array(values, dtype=float), column).astype(np.int16)
    codes[np.isnan(column)] = -1
    return codes


# ---- runs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    ones: list[int]
    fives: list[int]
    failed: list[float]
    ms: list[float]
    right: list[bool]
    paid: list[float]  # seconds of all experiments until within 1 %; 0: costs are unknown
    fast: list[float]


def cell(
    land: Landscape,
    strategy: str,
    simulator: str,
    seeds: list[int],
    budget: int,
    whole: bool = True,
    noise: float = NOISE,
) -> Cell:
    shown, full = land.simulators, land.foreseen
    land.simulators = {} if simulator == "none" else {simulator: shown[simulator]}
    land.foreseen = {} if simulator == "none" else full
    runs = [
        bench_run(land, strategy, seed, BenchSettings(budget=budget, noise=noise, whole=whole))[0] for seed in seeds
    ]
    land.simulators, land.foreseen = shown, full
    return Cell(
        ones=[r.evaluations_to_target or budget + 1 for r in runs],
        fives=[r.evaluations_to_5pct or budget + 1 for r in runs],
        failed=[r.failures / max(r.evaluations, 1) for r in runs],
        ms=[r.engine_ms_per_step for r in runs],
        paid=[r.cost_to_target or r.cost_total or 0.0 for r in runs],
        fast=[r.fast for r in runs],
        right=[r.recommended is not None and (r.recommended.regret or 0) <= 0.01 for r in runs],
    )


def joined(cells: list[Cell]) -> Cell:
    return Cell(*([x for c in cells for x in getattr(c, name)] for name in Cell.__dataclass_fields__))


def shown(c: Cell, budget: int) -> str:
    solved = sum(n <= budget for n in c.ones)
    mean = float(np.exp(np.mean(np.log(c.ones))))
    return (
        f"{np.median(c.ones):5.4g} ·{np.median(c.fives):5.4g}  geo {mean:5.1f}  {solved:2}/{len(c.ones):<2} "
        f"fail {np.mean(c.failed):4.0%}  {_paid(c)}fast {np.mean(c.fast):3.0%}  "
        f"rec {sum(c.right):2}  {np.median(c.ms):5.1f} ms"
    )


def _paid(c: Cell) -> str:
    return f"paid {np.exp(np.mean(np.log(c.paid))):6,.0f} s  " if all(c.paid) else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", default=["autoscout"])
    parser.add_argument("--of", default=",".join(FAMILIES))
    parser.add_argument("--draws", default="0,2")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--with", dest="simulators", default="none")
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--dummies", type=int, default=0)
    parser.add_argument("--peaks", action="store_true", help="runs that worked report their peak memory")
    parser.add_argument("--priced", action="store_true", help="runs say what they cost")
    parser.add_argument("--looks", type=int, default=0, help="with --priced: iterations that each measures")
    parser.add_argument("--noise", type=float, default=NOISE, help="of what runs tell, relative")
    parser.add_argument("--stop", action="store_true", help="a run ends when it has come within 1 %%")
    parser.add_argument("--facts", action="store_true", help="what the landscapes are like, and no runs")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    begun = time.process_time()
    found: dict[tuple[str, str, str], list[Cell]] = {}
    for family, number in itertools.product(given.of.split(","), map(int, given.draws.split(","))):
        land = landscape(family, number, given.dummies, given.peaks, given.priced, given.looks)
        if given.facts:
            facts(land)
            continue
        for strategy, simulator in itertools.product(given.strategies, given.simulators.split(",")):
            seeds = list(range(given.seeds))
            one = cell(land, strategy, simulator, seeds, given.budget, not given.stop, given.noise)
            found.setdefault((family, strategy, simulator), []).append(one)
            print(f"{land.name:34} {strategy:12} {simulator:9}", shown(one, given.budget), flush=True)
    for (family, strategy, simulator), cells in found.items():
        print(f"= {family:32} {strategy:12} {simulator:9}", shown(joined(cells), given.budget))
    for strategy, simulator in dict.fromkeys((s, w) for _, s, w in found):
        every = joined([c for (_, s, w), cells in found.items() if (s, w) == (strategy, simulator) for c in cells])
        print(f"= all{'':29} {strategy:12} {simulator:9}", shown(every, given.budget))
    print(f"{time.process_time() - begun:.0f} CPU s", file=sys.stderr)


def facts(land: Landscape) -> None:
    ok = np.isfinite(land.truth)
    ranks: Callable[[np.ndarray], np.ndarray] = lambda v: np.argsort(np.argsort(v))  # noqa: E731
    print(
        f"{land.name:34} {len(land.truth):7,} rows, {1 - ok.mean():3.0%} fail, {land.within(0.01)} within 1 %, "
        f"{land.within(0.05)} within 5 %, median ÷ best {np.median(land.truth[ok]) / land.optimum:.2f}"
    )
    best = int(np.nanargmin(land.truth))
    for name in ("perfect", "good", "biased", "good+80"):
        said = land.simulators[name]
        both = ok & np.isfinite(said)
        rho = float(np.corrcoef(ranks(said[both]), ranks(land.truth[both]))[0, 1])
        order = np.argsort(said, kind="stable")
        one, five = (int(np.argmax(land.truth[order] <= share * land.optimum)) for share in (1.01, 1.05))
        print(
            f"    {name:8} ρ {rho:.2f}, rank of the best {int((said < said[best]).sum()):6}, before the first within "
            f"1 %: {one}, within 5 %: {five}"
        )


if __name__ == "__main__":
    main()
