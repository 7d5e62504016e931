"""Mutation testing: a seeded sample of mutations, equally many of each kind in each package, each run against the tests
that cover its line; prints the surviving ones. `make mutants`; docs/lab/testing.md has the score.

The operators are those of Cosmic Ray that resemble human errors: another arithmetic operator, another comparison, `and`
for `or`, a number changed by one, a negated condition, True for False."""

import argparse
import ast
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import coverage  # pyright: ignore[reportMissingImports]
from cosmic_ray.ast import ast_nodes, get_ast  # pyright: ignore[reportMissingImports]
from cosmic_ray.mutating import mutate_code  # pyright: ignore[reportMissingImports]
from cosmic_ray.plugins import get_operator  # pyright: ignore[reportMissingImports]
from mutant_runner import PLAIN

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
RUNNER = Path(__file__).parent / "mutant_runner.py"
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
MOST_S = 60.0  # seconds of tests per mutation, fastest first


class Mutation(NamedTuple):
    room: str
    kind: str
    path: str  # relative to the root
    line: int
    operator: str
    occurrence: int


def mutations(room: str) -> Iterator[Mutation]:
    for path in sorted((ROOT / room).rglob("*.py")):
        if "worker" in path.parts:  # runs in other interpreters, without coverage
            continue
        text = path.read_text().splitlines()
        nodes = list(ast_nodes(get_ast(path.read_text())))
        for kind, name in ((kind, name) for kind, names in KINDS.items() for name in names):
            positions = get_operator(f"core/{name}")().mutation_positions
            places = [start for node in nodes for start, _ in positions(node)]
            for occurrence, (line, column) in enumerate(places):
                before, after = text[line - 1][:column], text[line - 1][column:]
                if before.endswith("strict="):  # zip's assertion, which correct code never violates
                    continue
                if after.startswith("*,"):  # a separator of parameters, not a product
                    continue
                yield Mutation(room, kind, str(path.relative_to(ROOT)), line, name, occurrence)


def sampled(count: int, seed: int, under: str) -> list[Mutation]:
    """A random sample with the same number of each kind in each package."""
    rng, chosen = random.Random(seed), []
    pools = [[each for each in mutations(room) if each.path.startswith(under)] for room in ROOMS]
    pools = [pool for pool in pools if pool]
    for pool in pools:
        for kind in KINDS:
            of_kind = [each for each in pool if each.kind == kind]
            chosen += rng.sample(of_kind, min(count // (len(pools) * len(KINDS)), len(of_kind)))
    return chosen


class Watched(NamedTuple):
    """The tests that run each line, and their times under coverage."""

    runs: dict[tuple[str, int], list[str]]  # (file, line) → tests
    took: dict[str, float]  # s

    def tests_of(self, mutation: Mutation) -> list[str]:
        """pytest's names of the tests that run the line, fastest first, up to MOST_S.

        Lines that run on import are attributed to no test, or to the first that imports them. For these, the tests are
        added that run the function or class of the definition, or a line that contains its name."""
        path, line = mutation.path, mutation.line
        found = set(self.runs.get((path, line), []))
        if defined := definition(path, line):
            found.update(*(self.runs.get((path, each), []) for each in defined.lines))
            users = (at for at in self.runs if defined.names & words(at[0]).get(at[1], frozenset()))
            found.update(*(self.runs[at] for at in users))
        names, spent = [], 0.0
        for name in sorted(found, key=lambda name: (self.took[name], name)):
            spent += self.took[name]
            if spent > MOST_S and names:
                break
            names.append(name)
        return names


@functools.cache
def words(path: str) -> dict[int, frozenset[str]]:
    """The identifiers in each line of a file."""
    lines = (ROOT / path).read_text().splitlines()
    return {i: frozenset(re.findall(r"\w+", line)) for i, line in enumerate(lines, 1)}


class Definition(NamedTuple):
    names: frozenset[str]
    lines: range


@functools.cache
def definition(path: str, line: int) -> Definition | None:
    """The innermost constant, field, class or function whose definition contains a line that runs on import; None for
    lines in a function's body."""
    found = Definition(frozenset(), range(0))
    for node in ast.walk(ast.parse((ROOT / path).read_text())):  # outer nodes come first
        if not isinstance(node, ast.stmt):
            continue
        decorators = getattr(node, "decorator_list", [])
        lines = range(min(each.lineno for each in (node, *decorators)), (node.end_lineno or node.lineno) + 1)
        if line not in lines:
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and line >= node.body[0].lineno:
            return None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found = Definition(frozenset([node.name]), lines)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
            found = Definition(frozenset(names), lines)
    return found


def watch(file: str) -> tuple[Path, Path]:
    """Runs one test file under coverage: (covered lines, times), cached until the file changes."""
    data, times = (BUILD / f"{Path(file).stem}.{kind}" for kind in ("coverage", "xml"))
    if times.exists() and times.stat().st_mtime > (ROOT / file).stat().st_mtime:
        return data, times
    settings = BUILD / f"{Path(file).stem}.rc"
    settings.write_text(f"[run]\ndynamic_context = test_function\nsource = kb, autoscout\ndata_file = {data}\n")
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-m", PLAIN, file]
    done = subprocess.run([*command, f"--junitxml={times}"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 5):
        times.unlink(missing_ok=True)
        raise SystemExit(f"{file} fails without any mutation:\n{done.stdout[-2000:]}")
    return data, times


def watched(at_once: int) -> Watched:
    BUILD.mkdir(parents=True, exist_ok=True)
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    runs: dict[tuple[str, int], list[str]] = defaultdict(list)
    took: dict[str, float] = defaultdict(float)
    with ThreadPoolExecutor(at_once) as pool:
        for file, (data, times) in zip(files, pool.map(watch, files), strict=True):
            for case in ElementTree.parse(times).iter("testcase"):
                took[_name(file, case)] += float(case.get("time") or 0)
            read = coverage.CoverageData(str(data))
            read.read()
            for path in read.measured_files():
                for line, contexts in read.contexts_by_lineno(path).items():
                    of = str(Path(path).relative_to(ROOT)), line
                    runs[of] += [f"{file}::{'::'.join(c.split('.')[1:])}" for c in contexts if c]
    return Watched(runs, took)


def _name(file: str, case: ElementTree.Element) -> str:
    """pytest's name of a test without its parameters, as in coverage's contexts."""
    of_class = (case.get("classname") or "").rpartition(Path(file).stem)[2].strip(".")
    return "::".join(filter(None, (file, of_class, (case.get("name") or "").partition("[")[0])))


class Copy:
    """A copy of the tree that mutations are written into, and the process that runs tests there."""

    def __init__(self, number: int) -> None:
        self.root = BUILD / f"tree-{number}"
        shutil.rmtree(self.root, ignore_errors=True)
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, tracked.stdout.split("\0")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        subprocess.run([sys.executable, "-m", "compileall", "-q", "kb", "autoscout", "tui", "tests"], cwd=self.root)
        # The installed package is the tree's; the path puts the copy's first.
        self.runner = subprocess.Popen(
            ["env", "-u", "PYTHONDONTWRITEBYTECODE", f"PYTHONPATH={self.root}", sys.executable, str(RUNNER)],
            cwd=self.root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def survives(self, mutation: Mutation, tests: list[str]) -> bool:
        file = self.root / mutation.path
        code, times = file.read_text(), file.stat()
        mutated = mutate_code(code, get_operator(f"core/{mutation.operator}")(), mutation.occurrence)
        assert mutated is not None
        assert self.runner.stdin
        assert self.runner.stdout
        try:
            file.write_text(mutated)
            self.runner.stdin.write(json.dumps(tests) + "\n")
            self.runner.stdin.flush()
            return self.runner.stdout.readline().strip() == "survived"
        finally:
            file.write_text(code)
            os.utime(file, (times.st_atime, times.st_mtime))  # the old bytecode is valid again


def survives(copies: "SimpleQueue[Copy]", tests_of: Callable[[Mutation], list[str]], mutation: Mutation) -> bool:
    tests = tests_of(mutation)
    if not tests:
        return True
    copy = copies.get()
    try:
        return copy.survives(mutation, tests)
    finally:
        copies.put(copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=304)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--under", default="", help="only of files whose path begins so")
    parser.add_argument("--tests", nargs="+", help="met by these tests and not by those that run the line")
    asked = parser.parse_args()
    if asked.tests:
        BUILD.mkdir(parents=True, exist_ok=True)
    tests_of = (lambda mutation: asked.tests) if asked.tests else watched(asked.at_once).tests_of
    chosen = sampled(asked.count, asked.seed, asked.under)
    copies: SimpleQueue[Copy] = SimpleQueue()
    for i in range(asked.at_once):
        copies.put(Copy(i))
    of, alive = Counter(one.room for one in chosen), Counter[str]()
    with ThreadPoolExecutor(asked.at_once) as pool:
        for one, lives in zip(chosen, pool.map(partial(survives, copies, tests_of), chosen), strict=True):
            if lives:
                alive[one.room] += 1
                source = (ROOT / one.path).read_text().splitlines()[one.line - 1].strip()
                print(json.dumps({**one._asdict(), "source": source}), flush=True)
    for room in of:
        print(f"{room}: {of[room] - alive[room]} of {of[room]} noticed")
    print(f"all: {1 - alive.total() / len(chosen):.1%} of {len(chosen)}, seed {asked.seed}")


if __name__ == "__main__":
    main()
