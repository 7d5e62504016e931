"""Do the tests notice a small fault? A seeded sample of mutations, as many of each kind in each room, each met by the
tests that run its line; what survives is listed with its line. `make mutants`; docs/testing.md has the score.

The operators are Cosmic Ray's that look like faults people make: another arithmetic operator, a comparison turned or
moved by one, and for or, a number one more or less, a condition negated, True for False.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import coverage  # pyright: ignore[reportMissingImports]
from cosmic_ray.ast import ast_nodes, get_ast  # pyright: ignore[reportMissingImports]
from cosmic_ray.mutating import mutate_code  # pyright: ignore[reportMissingImports]
from cosmic_ray.plugins import get_operator  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
ROOMS = ("autoscout/simulate", "autoscout/search", "autoscout/space", "kb")
KINDS = {
    "arithmetic": (
        "ReplaceBinaryOperator_Add_Sub",
        "ReplaceBinaryOperator_Sub_Add",
        "ReplaceBinaryOperator_Mul_Div",
        "ReplaceBinaryOperator_Div_Mul",
        "ReplaceUnaryOperator_Delete_USub",
    ),
    "comparison": (
        "ReplaceComparisonOperator_Eq_NotEq",
        "ReplaceComparisonOperator_NotEq_Eq",
        "ReplaceComparisonOperator_Lt_GtE",
        "ReplaceComparisonOperator_Lt_LtE",
        "ReplaceComparisonOperator_LtE_Lt",
        "ReplaceComparisonOperator_LtE_Gt",
        "ReplaceComparisonOperator_Gt_LtE",
        "ReplaceComparisonOperator_Gt_GtE",
        "ReplaceComparisonOperator_GtE_Gt",
        "ReplaceComparisonOperator_GtE_Lt",
    ),
    "logic": (
        "AddNot",
        "ReplaceAndWithOr",
        "ReplaceFalseWithTrue",
        "ReplaceOrWithAnd",
        "ReplaceTrueWithFalse",
        "ReplaceUnaryOperator_Delete_Not",
    ),
    "number": ("NumberReplacer",),
}
PLAIN = "not engine and not thorough and not hosts"
MOST_S = 60.0  # of tests run against one mutation, quickest first
TIMEOUT_S = 300.0


class Mutation(NamedTuple):
    room: str
    kind: str
    path: str  # from the root
    line: int
    operator: str
    occurrence: int


def mutations(room: str) -> Iterator[Mutation]:
    for path in sorted((ROOT / room).rglob("*.py")):
        if "worker" in path.parts:  # runs under other interpreters
            continue
        nodes = list(ast_nodes(get_ast(path.read_text())))
        for kind, name in ((kind, name) for kind, names in KINDS.items() for name in names):
            positions = get_operator(f"core/{name}")().mutation_positions
            lines = [start[0] for node in nodes for start, _ in positions(node)]
            for occurrence, line in enumerate(lines):
                yield Mutation(room, kind, str(path.relative_to(ROOT)), line, name, occurrence)


def sampled(count: int, seed: int) -> list[Mutation]:
    """The same number of each kind in each room; within these each mutation with the same probability."""
    rng, chosen, share = random.Random(seed), [], count // (len(ROOMS) * len(KINDS))
    for room in ROOMS:
        all_of = list(mutations(room))
        for kind in KINDS:
            chosen += rng.sample([each for each in all_of if each.kind == kind], share)
    return chosen


def watched() -> tuple[coverage.CoverageData, dict[str, float]]:
    """Which test runs which line, and how long each takes (s): one run of the plain suite, kept until it is removed."""
    data, times = BUILD / "coverage", BUILD / "times.xml"
    if not times.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        settings = BUILD / "coveragerc"
        settings.write_text(f"[run]\ndynamic_context = test_function\nsource = kb, autoscout\ndata_file = {data}\n")
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-m", PLAIN]
        subprocess.run([*command, f"--junitxml={times}"], cwd=ROOT, check=True)
    read = coverage.CoverageData(str(data))
    read.read()
    took: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(times).iter("testcase"):
        module = (case.get("classname") or "").rpartition(".")[2]
        took[f"{module}.{(case.get('name') or '').partition('[')[0]}"] += float(case.get("time") or 0)
    return read, took


def tests_of(mutation: Mutation, data: coverage.CoverageData, took: dict[str, float]) -> list[str]:
    """pytest's names of the tests that run the line, quickest first, a minute's worth."""
    contexts = data.contexts_by_lineno(str(ROOT / mutation.path)).get(mutation.line, [])
    where = {path.stem: str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    names, spent = [], 0.0
    for context in sorted((c for c in contexts if c.split(".")[0] in where), key=lambda c: took.get(c, 0.0)):
        module, _, test = context.partition(".")
        spent += took.get(context, 0.0)
        if spent > MOST_S and names:
            break
        names.append(f"{where[module]}::{test}")
    return names


def survives(copies: "SimpleQueue[Path]", data: coverage.CoverageData, took: dict[str, float], of: Mutation) -> bool:
    tests = tests_of(of, data, took)
    if not tests:
        return True
    copy = copies.get()
    file = copy / of.path
    code = file.read_text()
    try:
        mutated = mutate_code(code, get_operator(f"core/{of.operator}")(), of.occurrence)
        assert mutated is not None
        file.write_text(mutated)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", PLAIN, *tests]
        # The package that is installed is the tree's; the copy's goes first.
        done = subprocess.run(
            ["env", f"PYTHONPATH={copy}", "PYTHONDONTWRITEBYTECODE=1", *command],
            cwd=copy,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False  # it never ends: that is noticed
    finally:
        file.write_text(code)
        copies.put(copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=304)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2)
    asked = parser.parse_args()
    data, took = watched()
    chosen = sampled(asked.count, asked.seed)
    copies: SimpleQueue[Path] = SimpleQueue()
    for i in range(asked.at_once):
        copy = BUILD / f"tree-{i}"
        shutil.rmtree(copy, ignore_errors=True)
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, tracked.stdout.split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
        copies.put(copy)
    alive: Counter[str] = Counter()
    with ThreadPoolExecutor(asked.at_once) as pool:
        for one, lives in zip(chosen, pool.map(partial(survives, copies, data, took), chosen), strict=True):
            if lives:
                alive[one.room] += 1
                source = (ROOT / one.path).read_text().splitlines()[one.line - 1].strip()
                print(json.dumps({**one._asdict(), "source": source}), flush=True)
    each = len(chosen) // len(ROOMS)
    for room in ROOMS:
        print(f"{room}: {each - alive[room]} of {each} noticed")
    print(f"all: {1 - alive.total() / len(chosen):.1%} of {len(chosen)}, seed {asked.seed}")


if __name__ == "__main__":
    main()
