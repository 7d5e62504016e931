"""The house: no circle of imports, how long a file may be, and that a name is used once. Which room may import which is
import-linter's to hold (pyproject.toml).

Every import statement counts, wherever it stands: in a function, under TYPE_CHECKING, in a branch. What importlib loads
by a name that is put together at run time does not.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from autoscout.job.device_records import records

ROOT = Path(__file__).parents[1]
TOPS = ("kb", "autoscout", "tui")
LONGEST = 430  # lines
MOST_ROOMS = 14  # of autoscout, kb and tui together
# The parts that targets have in common: such a name may be used once in the folder of each target.
PARTS_OF_A_TARGET = {
    "arguments.py",
    "catalog.py",
    "effective.py",
    "expert.py",
    "failures.py",
    "importer.py",
    "measurement.py",
    "probe.py",
    "profiler.py",
}

# A strategy is named like its file, and a target has an expert, too.
USED_TWICE = {"expert.py"}


@cache
def parsed(path: Path) -> ast.Module:
    """Each file is read by several rules, and parsed once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(root: Path) -> nx.DiGraph:
    """File → file that it imports, by path."""
    modules = {}
    for top in TOPS:
        for path in sorted((root / top).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            modules[name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = name
    found = nx.DiGraph()
    found.add_nodes_from(modules.values())
    for importer in modules.values():
        for node in ast.walk(parsed(root / importer)):
            for name in _names(node, importer):
                wanted = name if name in modules else name.rpartition(".")[0]  # or a name inside the module
                if wanted in modules and modules[wanted] != importer:
                    found.add_edge(importer, modules[wanted])
    return found


def _names(node: ast.AST, importer: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{importer}, line {node.lineno}: write the import out, from the top"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def circles(house: nx.DiGraph) -> list[list[str]]:
    """One circle of every group of files that import each other, directly or not."""
    groups = [group for group in nx.strongly_connected_components(house) if len(group) > 1]
    return [[importer for importer, _ in nx.find_cycle(house.subgraph(group))] for group in groups]


@pytest.fixture(scope="module")
def house() -> nx.DiGraph:
    return imports(ROOT)


def test_no_file_imports_a_file_that_imports_it(house):
    assert circles(house) == []


def test_every_import_of_ours_names_a_file_that_there_is(house):
    """Those within functions fail only where they are reached."""
    lost = [
        f"{importer}: {name}"
        for importer in house
        for node in ast.walk(parsed(ROOT / importer))
        for name in _names(node, importer)
        if name.startswith(tuple(f"{top}." for top in TOPS)) and not _is_there(name)
    ]
    assert lost == []


def _is_there(name: str) -> bool:
    """A file, a folder, or a name inside of one."""
    path = ROOT / name.replace(".", "/")
    inside = path.parent / "__init__.py"
    files = (path.with_suffix(".py"), path / "__init__.py", path.parent.with_suffix(".py"))
    return any(file.is_file() for file in files) or (inside.is_file() and inside.stat().st_size > 0)


def test_a_name_is_used_once(house):
    where: defaultdict[str, list[str]] = defaultdict(list)
    for path in house:
        where[path.rpartition("/")[2]].append(path)
    del where["__init__.py"]
    twice = {name for name, paths in where.items() if len(paths) > 1 and not _parts_of_targets(name, paths)}
    assert {name: where[name] for name in twice - USED_TWICE} == {}


def _parts_of_targets(name: str, paths: list[str]) -> bool:
    """Whether all of them are the same part of different targets."""
    targets = {path.split("/")[2] for path in paths if path.startswith("autoscout/targets/")}
    return name in PARTS_OF_A_TARGET and len(targets) == len(paths)


# Words that say nothing of what is meant where several functions bear them: a reader of a call would have to look up
# which one it is. A target's methods have the name that `Target` gives them.
VAGUE = ("problems", "said", "kept")


def test_no_vague_name_is_that_of_two_functions():
    where: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "autoscout").rglob("*.py")):
        tree = parsed(path)
        given = {id(f) for c in ast.walk(tree) if isinstance(c, ast.ClassDef) and _is_target(c) for f in c.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name in VAGUE and id(node) not in given:
                where[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: places for name, places in where.items() if len(places) > 1} == {}


def _is_target(node: ast.ClassDef) -> bool:
    return node.name == "Target" or any(isinstance(base, ast.Name) and base.id == "Target" for base in node.bases)


def test_no_file_is_too_long(house):
    lines = {path: len((ROOT / path).read_text().splitlines()) for path in house}
    assert {path: n for path, n in lines.items() if n > LONGEST} == {}


def test_circles_are_found_wherever_the_import_stands(tmp_path):
    files = {
        "kb/facts.py": "def ask():\n    from autoscout.job import load\n",
        "autoscout/job/load.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kb.facts\n",
        "autoscout/tuning/loop.py": "from autoscout.job.load import load_job\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    house = imports(tmp_path)
    assert [sorted(circle) for circle in circles(house)] == [["autoscout/job/load.py", "kb/facts.py"]]


def test_the_list_of_slow_tests_names_tests_that_exist():
    """tests/left_out.txt, made by tests/tools/slow_tests.py."""
    named = [line.split("::") for line in (ROOT / "tests" / "left_out.txt").read_text().splitlines() if "::" in line]
    gone = [
        "::".join(parts)
        for parts in named
        if not re.search(rf"def {re.escape(parts[-1].partition('[')[0])}\(", (ROOT / parts[0]).read_text())
    ]
    assert gone == []


# Where a device has a name: columns of the first migrations, and what published runs ran on.
NAMES_DEVICES = ("kb/rows.py", "autoscout/studies/")
A_SENTENCE = 6  # words: what people are told


def named_devices(root: Path, words: set[str]) -> list[str]:
    """Where a string of the code, which is no sentence and no docstring, has one of the words."""
    word = re.compile(rf"(?<![a-z0-9])({'|'.join(sorted(words, key=len, reverse=True))})(?![a-z0-9])", re.IGNORECASE)
    found = []
    for path in sorted(path for top in TOPS for path in (root / top).rglob("*.py")):
        name, tree = path.relative_to(root).as_posix(), parsed(path)
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        strings = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        found += [
            f"{name}, line {node.lineno}: {node.value}"
            for node in strings
            if id(node) not in told and len(str(node.value).split()) < A_SENTENCE and word.search(str(node.value))
        ]
    return [place for place in found if not place.startswith(NAMES_DEVICES)]


def test_no_file_but_the_records_names_a_device(tmp_path):
    """Neither compared nor listed: a GPU is a file of fixtures/hardware, and code asks its record for facts."""
    words = {"hopper", "blackwell", "ampere", r"mi\d\w*"}
    for stem, record in records().items():
        spelled = [re.escape(name).replace(r"\ ", "[ -]?") for name in (stem, *record.series)]
        words |= set() if record.cores else set(spelled)
    assert named_devices(ROOT, words) == []
    for top in TOPS:
        (tmp_path / top).mkdir()
    (tmp_path / "kb" / "lists.py").write_text('"""On an H100."""\nHAVE = ("h100-pcie",)\nx = y.startswith("MI3")\n')
    assert named_devices(tmp_path, words) == ["kb/lists.py, line 2: h100-pcie", "kb/lists.py, line 3: MI3"]


def test_a_public_class_has_its_name_alone():
    where: defaultdict[str, list[str]] = defaultdict(list)
    for top in (*TOPS, "fixtures/plugins"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    where[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: places for name, places in where.items() if len(places) > 1} == {}


def test_the_rooms_are_few():
    rooms = {path.parent.name for path in (ROOT / "autoscout").glob("*/__init__.py")} | {"kb", "tui"}
    assert len(rooms) <= MOST_ROOMS, sorted(rooms)


def test_a_line_is_read_in_its_room_alone():
    """Elsewhere it is a `Line`, which is asked: nothing takes its words and searches them again."""
    several = re.compile(r"\b(list|Sequence|Iterable)\[str\]|\btuple\[str, \.\.\.\]")
    found = []
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for node in ast.walk(parsed(path)) if not name.startswith("autoscout/line/") else ():
                if (
                    isinstance(node, ast.arg)
                    and node.arg == "words"
                    and several.search(ast.unparse(node.annotation or node))
                ):
                    found.append(f"{name}:{node.lineno}")
    assert found == []
