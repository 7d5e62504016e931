"""Compares the speed of our spaces with ConfigSpace and Kernel Tuner's search-space builder:

    python tests/tools/space_bench.py [--json]

Every measurement is a separate process (CPU seconds, minimum of a few repeats; peak memory). Rivals that are not
installed or need more than two minutes are skipped with a remark. ConfigSpace has no arithmetic rules, so invalid
configurations are rejected in Python after listing or drawing, as its users do."""

import argparse
import importlib.util
import itertools
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

_TIMEOUT_S = 120
_DEGREES = [1, 2, 4, 8, 16, 32, 64]
SMALL: dict[str, list[int]] = {
    "pp": _DEGREES,
    "tp": _DEGREES,
    "cp": _DEGREES,
    "dp": _DEGREES,
    "vpp": [1, 2, 4, 8],
    "mbs": [1, 2, 4, 8, 16],
    "layers": [1, 2, 4, 8, 16, 32],
    "bucket": [1, 4, 16, 32, 64, 128],
    "recompute": [0, 1, 2],
}
SMALL_RULES = [
    "pp * tp * cp * dp == 64",
    "tp <= 8",
    "32 % (pp * vpp) == 0",
    "vpp == 1 or pp > 1",
    "512 % (mbs * dp) == 0",
    "vpp == 1 or 512 // (mbs * dp) % pp == 0",
    "recompute == 2 or layers == 1",
    "32 // (pp * vpp) % layers == 0",
    "bucket * tp * pp <= 2048",
]
LARGE = {
    **SMALL,
    **{name: [0, 1] for name in ("sp", "distopt", "overlap_grad", "overlap_param", "dispatcher")},
    "sm": [12, 13, 14, 15, 16, 17, 18, 19],
}
LARGE_RULES = [
    *SMALL_RULES,
    "sp == 0 or tp > 1",
    "overlap_param == 0 or distopt + overlap_grad == 2",
    "sm == 12 or sp == 1",
    "bucket == 1 or overlap_grad == 1",
    "dispatcher == 0 or dp > 1",
]


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """CPU seconds of the fastest repeat."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def each(work: Callable[[Any], Any], items: list[Any]) -> float:
    """CPU seconds per item, in the fastest of five rounds over all items."""
    return best(lambda: [work(item) for item in items]) / len(items)


# ---- ours --------------------------------------------------------------------------------------------------


def our_space(parameters: dict[str, list[int]], rules: list[str]) -> Any:
    from autoscout.space.graph import Space
    from autoscout.space.knob import Knob, Rule
    from autoscout.space.language.expression import Expression

    structural = {"pp", "tp", "cp", "dp", "vpp", "sp", "recompute"}
    knobs = [
        Knob(
            name=name,
            kind="sparse" if name in structural else "dense",
            layer="",
            values=tuple(values),
            meaning="",
            sets=name,
        )
        for name, values in parameters.items()
    ]
    return Space(
        knobs,
        [Rule(id=f"r{i}", holds=Expression(r), reason=r, source="", checked="ours") for i, r in enumerate(rules)],
        {},
    )


def ours_small() -> dict[str, Any]:
    space = our_space(SMALL, SMALL_RULES)
    rows = [space.of_codes(row) for row in space.sample_many(300, np.random.default_rng(0)).tolist()]
    codes = [space.codes_of(c.knobs) for c in rows]
    return {
        "count": space.count,
        "enumerate_s": best(lambda: our_space(SMALL, SMALL_RULES).feasible),
        "valid_us": 1e6 * each(space.is_valid, rows),
        "neighbours_us": 1e6 * each(space.neighbour_codes, codes),
        "samples_per_s": 10_000 / best(lambda: space.sample_many(10_000, np.random.default_rng(0))),
    }


def ours_large() -> dict[str, Any]:
    made: list[Any] = []

    def work() -> None:
        made.clear()
        made.append(our_space(LARGE, LARGE_RULES).feasible)

    seconds = best(work, 2)
    return {"count": len(made[0]), "enumerate_s": seconds}


def ours_megatron() -> dict[str, Any]:
    """1,024 GPUs, Qwen3-30B-A3B with Transformer Engine, the shipped catalog and as many switches as make 25 knobs."""
    import msgspec

    from autoscout.job.presets import models
    from autoscout.space.attributes import attributes_of
    from autoscout.space.graph import Space
    from autoscout.space.knob import KnobEntry, instantiate
    from autoscout.targets.target import shipped
    from kb.records import Cluster, Job, LaunchSettings, Model, Node, Objective, Traffic

    job = Job(
        name="large",
        target="megatron",
        model=msgspec.convert({**models()["qwen3-30b-a3b"], "preset": "qwen3-30b-a3b"}, Model),
        traffic=Traffic(seq_len=4096, global_batch=2048),
        cluster=Cluster(nodes=[Node(device="a100", count=1024)]),
        objective=Objective(minimize="step_time_s"),
        launch=LaunchSettings(transformer_engine=True),
    )
    catalog = shipped("megatron")
    extra = [
        KnobEntry(name=f"switch{i}", kind="sparse", layer="more", values=[False, True], off=False, meaning="", sets="")
        for i in range(25 - len(catalog.knob))
    ]
    catalog = msgspec.structs.replace(catalog, knob=[*catalog.knob, *extra])

    def make() -> Any:
        attributes = attributes_of(job)
        return Space(*instantiate(catalog, attributes), attributes)

    space = make()
    rng = np.random.default_rng(0)
    return {
        "knobs": len(space.knobs),
        "count": space.count,
        "cross_product": float(math.prod(float(len(knob.values)) for knob in space.knobs)),
        "first_sample_ms": 1e3 * best(lambda: make().sample(np.random.default_rng(0)), 3),
        "samples_per_s": 10_000 / best(lambda: space.sample_many(10_000, rng)),
        "single_samples_per_s": 1_000 / best(lambda: [space.sample(rng) for _ in range(1_000)]),
    }


# ---- rivals ------------------------------------------------------------------------------------------------


def kernel_tuner(parameters: dict[str, list[int]], rules: list[str]) -> Any:
    from kernel_tuner.searchspace import Searchspace  # type: ignore[reportMissingImports]

    return Searchspace(parameters, rules, 1024)


def kernel_tuner_small() -> dict[str, Any]:
    seconds = best(lambda: kernel_tuner(SMALL, SMALL_RULES), 3)
    space = kernel_tuner(SMALL, SMALL_RULES)
    rows = space.get_random_sample(300)
    return {
        "count": space.size,
        "enumerate_s": seconds,
        "valid_us": 1e6 * each(space.is_param_config_valid, rows),
        "neighbours_us": 1e6 * best(lambda: [space.get_neighbors_no_cache(r, "adjacent") for r in rows[:20]], 1) / 20,
        "samples_per_s": 10_000 / best(lambda: space.get_random_sample(10_000), 3),
    }


def kernel_tuner_large() -> dict[str, Any]:
    begin = time.process_time()
    space = kernel_tuner(LARGE, LARGE_RULES)
    return {"count": space.size, "enumerate_s": time.process_time() - begin}


def config_space(parameters: dict[str, list[int]]) -> Any:
    from ConfigSpace import ConfigurationSpace, OrdinalHyperparameter  # type: ignore[reportMissingImports]

    space = ConfigurationSpace(seed=0)
    space.add([OrdinalHyperparameter(name, values) for name, values in parameters.items()])
    return space


def config_space_small() -> dict[str, Any]:
    from ConfigSpace.util import get_one_exchange_neighbourhood  # type: ignore[reportMissingImports]

    space = config_space(SMALL)
    allowed = eval(f"lambda {', '.join(SMALL)}: {' and '.join(f'({r})' for r in SMALL_RULES)}")
    count = sum(allowed(*values) for values in itertools.product(*SMALL.values()))
    drawn = space.sample_configuration(20_000)
    valid = [c for c in drawn if allowed(**dict(c))]
    seconds = best(lambda: [allowed(**dict(c)) for c in space.sample_configuration(20_000)], 1)
    return {
        "count": count,
        "enumerate_s": best(lambda: [v for v in itertools.product(*SMALL.values()) if allowed(*v)], 1),
        "valid_us": 1e6 * each(lambda c: (c.check_valid_configuration(), allowed(**dict(c))), drawn[:300]),
        "neighbours_us": 1e6 * best(lambda: [list(get_one_exchange_neighbourhood(c, 0)) for c in drawn[:20]], 1) / 20,
        "samples_per_s": len(valid) / seconds,
        "drawn_for_one_valid": len(drawn) / max(len(valid), 1),
    }


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "ours, small": ours_small,
    "Kernel Tuner, small": kernel_tuner_small,
    "ConfigSpace, small": config_space_small,
    "ours, large": ours_large,
    "Kernel Tuner, large": kernel_tuner_large,
    "ours, 1,024 GPUs": ours_megatron,
}
_NEEDS = {"Kernel Tuner": "kernel_tuner", "ConfigSpace": "ConfigSpace"}


def run(case: str) -> dict[str, Any]:
    module = _NEEDS.get(case.split(",")[0])
    if module is not None and importlib.util.find_spec(module) is None:
        return {"skipped": f"{module} is not installed"}
    command = [sys.executable, __file__, "--case", case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return {"skipped": f"not done after {_TIMEOUT_S} s"}
    if done.returncode != 0:
        return {"skipped": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", choices=CASES)
    options = parser.parse_args()
    if options.case:
        result = CASES[options.case]()
        result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(result))
        return
    results = {case: run(case) for case in CASES}
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(
        f"small: {math.prod(map(len, SMALL.values())):,} combinations; large: {math.prod(map(len, LARGE.values())):,}"
    )
    for case, result in results.items():
        shown = (
            f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value:,}"
            for name, value in result.items()
            if name != "skipped"
        )
        print(f"{case:<22} {result.get('skipped') or ' · '.join(shown)}")


if __name__ == "__main__":
    main()
