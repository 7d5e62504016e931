"""What the serving model says of seeded rows: its operators, a step's parts, the fluid under every kind of load, single
requests event by event, memory, and offloading. `UPDATE_FROZEN=1` writes them anew."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from autoscout_flexllmgen import offloading
from frozen_values import Values, drawn, hold, kept

from autoscout.job.requests import Requests
from autoscout.simulate.serving import engine_shapes, operators, steps
from autoscout.simulate.serving.doubt import fluid_error, stated_error
from autoscout.simulate.serving.engine_run import step_times
from autoscout.simulate.serving.events import simulate
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.latencies import metrics_of_run
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator
from kb.records import Traffic

Columns = dict[str, Any]
NAN = float("nan")
SHAPE: dict[str, list[Any]] = {
    "layers": [16, 32], "hidden": [2048, 4096], "heads": [16, 32], "kv_heads": [0, 8], "head_dim": [0, 128],
    "ffn": [8192, 14336], "vocab": [32000, 128256], "gated": [0, 1], "tied": [0, 1], "experts": [0, 0, 8],
    "topk": [1, 2], "expert_ffn": [0, 1792],
}  # fmt: skip
KNOBS: dict[str, list[Any]] = {
    "tp": [1, 2, 4], "pp": [1, 1, 2], "dp": [1, 1, 2], "ep": [0, 1], "max_num_seqs": [8, 64, 256],
    "max_num_batched_tokens": [512, 2048, 8192], "block_size": [16, 32], "gpu_memory_utilization": [0.5, 0.9, NAN],
    "chunked_prefill": [0, 1], "long_prefill": [0, 256], "prefix_caching": [0, 1], "scheduler_v0": [0, 0, 1],
    "eager": [0, 1], "async_scheduling": [False, True], "graph_size": [NAN, 64], "python_host": [0, 1],
    "quantization": ["none", "", "fp8", "nvfp4", "awq", "w8a8"], "dtype": ["", "bf16", "fp32"],
    "kv_cache_dtype": ["auto", "fp8"], "kv_cache_mib": [0, 0, 4096], "shared_prefix": [0, 0, 100],
    "input_len": [64, 500, 3000], "output_len": [1, 2, 50, 300], "requests": [0, 40, 300],
}  # fmt: skip
LOADS: dict[str, dict[str, list[Any]]] = {
    "batch": {"batch": [1, 7, 64, 300]},
    "closed": {"concurrency": [1, 16, 100], "length_spread": [0.0, 0.1]},
    "open": {"rate": [0.2, 2.0, 40.0]},
}
SMALL: Columns = {
    "layers": 8, "hidden": 1024, "heads": 8, "kv_heads": 2, "ffn": 4096, "vocab": 32000, "tp": 1, "pp": 1, "batch": 1,
    "input_len": 10, "output_len": 10,
}  # fmt: skip


@pytest.mark.parametrize("load", list(LOADS))
@pytest.mark.parametrize("kind", ["a100", "h100"])
def test_the_fluid(load: str, kind: str):
    columns = drawn(SHAPE | KNOBS | LOADS[load], 10, 1 + len(kind))
    if kind == "h100" and load != "batch":
        same = Traffic(input_len=100, output_len=30, rate=3.0 * (load == "open"), concurrency=9 * (load == "closed"))
        columns |= {"traffic": same}
    s = setup(columns, device(kind), 10)
    found = {name: kept(values[:4] if "_p9" in name else values) for name, values in fluid(s).items()}
    for tail in ("ttft_p95_ms", "e2el_p95_ms", "itl_p95_ms", "tpot_p95_ms", "goodput_rps", "total_tokens_per_s"):
        del found[tail]
    memory = s.memory
    found |= {"kv_tokens": kept(memory.kv_tokens), "activations": kept(memory.activations_gib)}
    hold(f"serving/{load}_{kind}", found)


def test_defaults_of_a_setup():
    found: Values = {}
    for kind in ("a100", "h100", "a40", "b200"):
        rows = {"batch": np.array([0, 8, 0, 8]), "rate": np.array([1.0, 0, 1.0, 0]), "input_len": 9, "output_len": 9}
        more = {"scheduler_v0": np.array([0, 0, 1, 1]), "context": np.array([NAN, 512, 512, 9000]), "overlap": NAN}
        s = setup({**SMALL, "gpu": kind, **rows, **more}, device(kind), 4)
        for name in ("max_seqs", "batched_tokens", "chunked", "prefix_caching", "long_prompt", "requests", "version"):
            found[f"{kind} {name}"] = kept(getattr(s, name))
        engine = s.engine
        found |= {f"{kind} {name}": kept(getattr(engine, name)) for name in ("overlap", "persistent", "eager_prompts")}
        found[f"{kind} spread"] = kept(s.length_spread)
    hold("serving/defaults", found)


@pytest.mark.parametrize("kind", ["a100", "h100", "b200"])
def test_operators_and_steps(kind: str):
    c = device(kind)
    tokens = np.array([0, 1, 15, 16, 17, 100, 128, 129, 1000, 5000.0])
    seqs = np.array([0, 1, 1, 2, 3, 4, 8, 9, 64, 300.0])
    found: Values = {
        "gemm": kept(operators.gemm_us(c.gemm, c.sms, tokens, 4096, 1000, 2.0)),
        "wide": kept(operators.gemm_us(c.gemm, c.sms, tokens, 50000, 4000, 1.0, 2.0)),
        "elementwise": kept(operators.elementwise_us(c.elementwise, tokens * 4096, 6.0)),
        "slope": kept(operators.decode_slope_us(c.decode, 4096.0, np.array([0.5, 1, 2, 8]))),
        "decode": kept(operators.decode_us(c.decode, seqs, tokens, 4096.0, 4.0)),
        "prefill": kept(operators.prefill_us(c.prefill, c.sms, seqs, tokens, tokens**2 / 2, 32, 128, 4096.0)),
        "experts": kept(operators.experts_us(c.experts, tokens, 4096, 1792, 2, 64, 2.0, np.array([1, 2] * 5), 2.0)),
        "few experts": kept(operators.experts_us(c.experts, tokens, 4096, 1792, 2, 4, 2.0, 8)),
    }
    world, size = np.array([1, 2, 3, 4, 5, 8, 16]), np.array([1e3, 1e4, 1e5, 1e6, 1e7, 1e9, 1e10])
    found["all-reduce"] = kept(steps.all_reduce_us(c, world, size))
    e = engine_shapes.engine(drawn(SHAPE | KNOBS, 10, 5), c, 10)
    found |= {name: kept(getattr(e, name)) for name in ("params_bytes", "speed", "weight_bytes", "kv_bytes", "group")}
    found |= {
        "linear": kept(steps.linear_s(e, tokens)),
        "communication": kept(steps.communication_s(e, tokens)),
        "logits": kept(steps.logits_s(e, seqs)),
        "step": kept(steps.decode_step_s(e, seqs, tokens)),
        "prefill step": kept(steps.prefill_step_s(e, seqs, tokens, tokens * 9, 3.0, 70.0)),
        "prompts alone": kept(steps.prefill_step_s(e, seqs, tokens, tokens * 9)),
    }
    hold(f"serving/operators_{kind}", found)


def test_tables_of_step_times_say_what_the_arrays_say():
    """Whatever is tabulated for the event simulation is the arrays' own formula, at every size that is tabulated."""
    for knobs in (
        {},
        {"pp": 2, "tp": 2},
        {"eager": 1},
        {"async_scheduling": False},
        {"scheduler_v0": 1},
        {"experts": 8},
    ):
        s = setup({**SMALL, **knobs}, device("a100"), 1)
        times = step_times(s.engine, EngineLimits(kv_tokens=1000, max_seqs=9, batched_tokens=800), 0)
        for seqs, tokens, decodes, context in (
            (1, 10, 0, 0),
            (2, 64, 2, 40),
            (4, 600, 2, 100),
            (2, 512, 0, 0),
            (4, 96, 4, 9),
        ):
            array = steps.prefill_step_s(s.engine, seqs, tokens, tokens * 5.0, float(decodes), float(context))
            if (tokens + decodes) % 32 == 0 or tokens + decodes <= 512:
                assert times.prompts(seqs, tokens, tokens * 5.0, decodes, context) == pytest.approx(float(array[0]))
        for seqs, context in ((1, 7), (2, 30), (8, 400)):
            once = times.decode(seqs) + times.context(seqs) * context
            array = steps.decode_step_s(s.engine, float(seqs), float(context))
            assert times.whole(once, seqs, times.eager) == pytest.approx(float(array[0]))
    alone = times.on_device(2, 40, 100.0, 1, 5)
    parts = times.passes(41) + times.logits[3] + times.prompt.seconds(2, 40, 100.0)
    assert alone == pytest.approx(parts + times.attention[1] + times.per_context[1] * 5)
    eager = replace(times, eager=True)
    assert eager.on_device(2, 40, 100.0, 1, 5) == max(alone, times.launches)
    big = replace(times, launches=1.0, graph_tokens=41.0, eager=False)
    assert big.on_device(2, 40, 100.0, 1, 5) == alone
    assert big.on_device(2, 41, 100.0, 1, 5) == 1.0
    assert times.passes(10**6) == times.linear[-1]
    assert [times.passes(n) for n in (512, 513, 544, 545)] == [times.linear[i] for i in (512, 513, 513, 514)]
    assert times.prompt.seconds(1, 0, 0) == 0.0


EVENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "roomy": ({"kv_tokens": 4000}, {}),
    "short of memory": ({"kv_tokens": 200}, {}),
    "few places": ({"kv_tokens": 4000, "max_seqs": 2}, {}),
    "small steps": ({"kv_tokens": 600, "batched_tokens": 24}, {}),
    "capped prompts": ({"kv_tokens": 600, "batched_tokens": 64, "long_prompt": 10}, {}),
    "whole prompts": ({"kv_tokens": 400, "batched_tokens": 50, "chunked": False}, {}),
    "version 0": ({"kv_tokens": 300, "batched_tokens": 64, "version": 0}, {}),
    "version 0 forced": ({"kv_tokens": 64, "batched_tokens": 64, "version": 0}, {}),
    "version 0 users": ({"kv_tokens": 170, "batched_tokens": 100, "version": 0, "prefix_caching": False}, {"users": 5}),
    "a prefix": ({"kv_tokens": 400}, {"shared_prefix": 20}),
    "a long prefix": ({"kv_tokens": 250, "block": 8}, {"shared_prefix": 64, "users": 3}),
    "users": ({"kv_tokens": 500}, {"users": 4}),
    "more users": ({"kv_tokens": 150, "block": 4}, {"users": 20}),
    "users and refusals": ({"kv_tokens": 70, "block": 8}, {"users": 3}),
    "slow arrivals": ({"kv_tokens": 900}, {"pace": 0.2}),
    "one seat": ({"kv_tokens": 160, "max_seqs": 1, "block": 32}, {"pace": 0.004}),
}


METRICS = (
    "ttft_p90_ms",
    "tpot_mean_ms",
    "itl_mean_ms",
    "itl_p95_ms",
    "goodput_rps",
    "total_tokens_per_s",
    "preemptions",
)


@pytest.mark.parametrize("stages", [1, 2])
def test_events(stages: int):
    """Gaps between tokens are kept by their sums: how a run of steps is cut into events does not matter."""
    s = setup({**SMALL, "pp": stages, "eager": stages - 1}, device("a100"), 1)
    rng = np.random.default_rng(4)
    found: Values = {}
    for name, (limits, load) in EVENTS.items():
        n = 24
        inputs, outputs = rng.integers(1, 60, n), rng.integers(1, 40, n)
        outputs[:2] = 1
        inputs[4], outputs[4] = 16, 16
        arrivals = np.cumsum(rng.exponential(load.get("pace", 0.002), n))
        arrivals[3] = arrivals[2]
        requests = Requests(arrivals, inputs, outputs, load.get("shared_prefix", 0), load.get("users", 0))
        run = simulate(s.engine, EngineLimits(**limits), requests)
        gaps = float((run.gaps_s * run.gap_counts).sum())
        sums = [np.nansum(seconds * np.arange(1, n + 1)) for seconds in (run.first_s, run.end_s, run.arrival_s)]
        found[f"{name} run"] = kept([run.preemptions, run.steps, run.gap_counts.sum(), gaps, *sums])
        said = metrics_of_run(run, 2, {"ttft": 20.0, "tpot": 5.0, "e2el": 90.0})
        found[f"{name} metrics"] = kept([said[key] for key in METRICS if key in said])
    hold(f"serving/events_{stages}", found)


@pytest.mark.parametrize("rows", [8, 36])
def test_the_simulator_and_rows_of_several_frameworks(rows: int):
    """36 rows are a fluid, 8 are simulated event by event."""
    columns = {**drawn(SHAPE | KNOBS | LOADS["open"], rows, 9), "requests": 30, "input_len": 60, "gpu": "a100"}
    some = np.arange(rows)
    columns |= {"framework": np.where(some % 2, "vLLM", "SGLang"), "spec": np.where(some == 7, "eagle", "none")}
    columns |= {"gpu": np.array(["a100", "h100", "a40", "b200"] * 2)} if rows == 8 else {}
    found: Values = {}
    for metric in ("ttft_p99_ms", "output_tokens_per_s"):
        simulator = ServingSimulator(metric)
        before = simulator.predict(columns)
        found |= {f"{metric} value": kept(before.value[:14]), f"{metric} error": kept(before.error[:5])}
        simulator.fit(columns, before.value * np.linspace(0.7, 1.9, rows))
        found[f"{metric} levels"] = kept(list(simulator.levels.values()))
        after = simulator.predict({**columns, "framework": np.where(some % 2, "vLLM", "TGI")})
        found |= {f"{metric} fitted": kept(after.value[:14]), f"{metric} fitted error": kept(after.error[:5])}
    found |= {name: kept(values[:14]) for name, values in before.parts.items()}
    hold(f"serving/simulator_{rows}", found)


@pytest.mark.parametrize(
    "more", [{}, {"dp": 2}, {"batch_timed": 1}, {"batch": 0, "concurrency": 5}, {"batch": 0, "rate": 30}]
)
def test_single_rows_are_simulated_event_by_event(more: Columns):
    rows = {**SMALL, "batch": 9, "requests": 40, "shared_prefix": 3, "input_len": 80, **more, "gpu": "a100"}
    found: Values = {}
    for metric in ("ttft_mean_ms", "e2el_p90_ms", "tpot_mean_ms", "requests_per_s", "goodput_rps"):
        said = ServingSimulator(metric).predict(rows | {"slo_tpot_ms": 1.9, "slo_e2el_ms": 20.0})
        found[metric] = kept([said.value[0], said.error[0]])
    hold("serving/row_" + "_".join(more), found)


def test_stated_errors():
    """Squares add: the metric's own error, and that of constants that are another device's."""
    assert stated_error("ttft_mean_ms", "a100") == 0.25
    assert stated_error("tpot_p99_ms", "a100-40g") == 0.085
    assert stated_error("peak_memory_gib", "a100") == 0.05
    assert stated_error("requests_per_s", "a100") == 0.085
    assert stated_error("tpot_mean_ms", "b200") == pytest.approx(np.hypot(0.085, 0.115))
    assert stated_error("tpot_mean_ms", "mi300x") == pytest.approx(np.hypot(0.085, 0.15))
    assert [fluid_error(f"ttft_{at}_ms") for at in ("mean", "p50", "p90", "p95", "p99")] == [0.35, 0.35, 0.4, 0.4, 0.4]
    assert fluid_error("peak_memory_gib") == 0.0


def test_offloading():
    found: Values = {}
    rng = np.random.default_rng(5)
    machine = offloading.Machine(gpu=15e9)
    for hidden, batch, weight in ((2048, 8, 1.0), (7168, 32, 0.25), (5120, 128, 1.0)):
        g = offloading.Generation(layers=40, hidden=hidden, heads=32, ffn=3 * hidden, prompt=300, tokens=20)
        weights, cache, states = (rng.dirichlet(np.ones(3), 4).T for _ in range(3))
        share = dict(zip(offloading.SHARES, [*weights, *cache, *states], strict=True))
        forms = offloading.forms(g, machine, batch, 6, share, weight)
        for name, lists in forms._asdict().items():
            found[f"{hidden} {name}"] = kept(np.broadcast_arrays(*lists))
        told = offloading.evaluate(g, machine, batch, 6, share, weight)
        found |= {f"{hidden} {name}": kept(values) for name, values in told.items()}
    # All on a GPU that holds exactly what is used at most; a byte less than the tolerance allows does not fit.
    g = offloading.Generation(layers=4, hidden=1024, heads=16, ffn=4096, prompt=64, tokens=8)
    on_gpu = {name: float(name.endswith("g")) for name in offloading.SHARES}
    used = float(offloading.evaluate(g, machine, 2, 1, on_gpu)["gpu_gib"]) * offloading.GB
    for share_of_need, fits in ((1.0, True), (1 - 2e-6, False)):
        exact = offloading.Machine(gpu=used * share_of_need / 0.8)
        assert bool(offloading.evaluate(g, exact, 2, 1, on_gpu)["fits"]) is fits
    assert offloading.solve(g, offloading.Machine(gpu=1e5, cpu=1e5, disk=1e5), 2, 1) is None
    solved = offloading.solve(g, offloading.Machine(gpu=used / 1.7), 4, 2, 0.5)
    assert solved is not None
    assert {kind: round(sum(v for k, v in solved.items() if k[0] == kind), 6) for kind in "wch"} == dict.fromkeys(
        "wch", 1
    )
    assert solved["hd"] == 0.0
    found["solved"] = kept(list(offloading.evaluate(g, machine, 4, 2, solved, 0.5).values()))
    hold("serving/offloading", found)
