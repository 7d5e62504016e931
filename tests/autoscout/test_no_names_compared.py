"""The simulators know no device, engine, source of a table or family of models by its name: what has one stands in a
record, so that another spelling or a rename changes no number."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoscout.job.device_records import records
from autoscout.simulate.engine_records import families

FOLDER = Path("autoscout/simulate")
# Sources of published tables, and families of models.
SOURCES = ("mlperf", "vtrain", "mist", "aceso", "nanotron", "aiconfigurator", "accelmark", "llm_inference_bench")
MODELS = ("llama", "qwen", "deepseek", "gemma", "mixtral", "mistral", "gpt_oss", "gptoss", "glm", "minimax", "kimi")
FAMILIES = ("megatron", "nemo", "fsdp2", "amd", "rocm", "nvidia", "hopper", "blackwell", "hgx", "dgx")


def names() -> set[str]:
    """In lower case without what separates words; those of four letters at least, as shorter ones are words, too."""
    devices = [name for stem, one in records().items() for name in (stem, one.name, *one.names)]
    engines = [name for stem, one in families().items() for name in (stem, one.name, *one.names)]
    every = (*devices, *engines, *SOURCES, *MODELS, *FAMILIES)
    return {short for name in every if len(short := plain(name)) > 3} - {"other", "another engine"}


def plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def compared(tree: ast.AST) -> Iterator[ast.Constant]:
    """Texts that are compared or searched for: operands of comparisons, arguments of text's own questions and of
    NumPy's and re's, and values of names that begin such."""
    asked = {"startswith", "endswith", "find", "search", "match", "fullmatch", "isin", "count", "removeprefix"}
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in asked:
            parts = list(node.args)
        for part in parts:
            yield from (n for n in ast.walk(part) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def listed(tree: ast.Module) -> Iterator[ast.Constant]:
    """Texts of a module's constants, which are compared elsewhere."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            yield from (n for n in ast.walk(node.value) if isinstance(n, ast.Constant) and isinstance(n.value, str))


# What reads other people's tables knows how these say things; it is no simulator.
READERS = ("validation",)
# Targets, which entry points know by their names: whose knobs the memory model reads only where a catalog says how, and
# whose layers are known without anybody saying so.
TARGETS = {("ensemble", "deepspeed"), ("encode", "megatron")}


@pytest.mark.parametrize(
    "path", [p for p in sorted(FOLDER.rglob("*.py")) if p.parent.name not in READERS], ids=lambda p: p.stem
)
def test_no_name_is_compared(path: Path) -> None:
    known, tree = names(), ast.parse(path.read_text(encoding="utf-8"))
    found = [
        f"{path}:{text.lineno}: {text.value!r}"
        for text in (*compared(tree), *listed(tree))
        if any(name in plain(str(text.value)) for name in known) and (path.stem, text.value) not in TARGETS
    ]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        'fast = name.startswith("h100")',
        'x = np.where(framework == "TensorRT-LLM", 1, 2)',
        'x = row.get("source") == "mlperf"',
        '_HAVE = ("b200", "gb200")',
        'x = np.char.find(names, "sglang") >= 0',
        'x = "qwen3" in model',
    ],
)
def test_a_name_that_is_compared_is_found(line: str) -> None:
    known, tree = names(), ast.parse(line)
    assert any(name in plain(str(text.value)) for text in (*compared(tree), *listed(tree)) for name in known)


def test_no_reader_asks_for_the_name_of_a_source() -> None:
    """Of a table's rows: what a row says counts, and never where it is from."""
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                assert not ("source" in texts and len(texts) > 1), f"{path}:{node.lineno}"
                assert not any(name in str(text) for text in texts for name in SOURCES), f"{path}:{node.lineno}"
