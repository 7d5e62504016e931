"""Figure 1 of the paper for the installed releases: the number of settings that vLLM and Megatron-core expose.

    python tests/tools/count_knobs.py [WHEEL…]

Settings are counted in the source, without imports: of the versions in .venv and .venv-vllm, and of wheels on the
command line (`pip download --no-deps megatron-core==0.9.0`). vLLM: fields of EngineArgs, each an argument of the engine
and a flag of `vllm serve`. Megatron-core: fields of the configuration classes that a training run fills in."""

import ast
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

# Classes by file, per tool. A class and its base classes are one entry, because they share fields.
MEGATRON = [
    {
        "megatron/core/model_parallel_config.py": "ModelParallelConfig",
        "megatron/core/transformer/transformer_config.py": "TransformerConfig",
    },
    {"megatron/core/distributed/distributed_data_parallel_config.py": "DistributedDataParallelConfig"},
    {"megatron/core/optimizer/optimizer_config.py": "OptimizerConfig"},
]
VLLM = [{"vllm/engine/arg_utils.py": "EngineArgs"}]
TOOLS = {"Megatron-core": ("megatron_core-", ".venv", MEGATRON), "vLLM": ("vllm-", ".venv-vllm", VLLM)}
_BAR = 5  # settings per character of the printed bar


def settings(read: Callable[[str], str | None], families: list[dict[str, str]]) -> int:
    """`read`: the source of a file, None if there is no such file."""
    return sum(
        len(set().union(*(fields(source, name) for file, name in family.items() if (source := read(file)) is not None)))
        for family in families
    )


def fields(source: str, name: str) -> set[str]:
    """The annotated fields that a class declares itself."""
    bodies = [node.body for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef) and node.name == name]
    return {
        item.target.id
        for body in bodies
        for item in body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and "ClassVar" not in ast.unparse(item.annotation)
    }


def installed() -> Iterator[tuple[str, str, int]]:
    """(tool, version, settings) of each installed tool."""
    for tool, (name, environment, families) in TOOLS.items():
        for packages in Path(environment).glob("lib/python3*/site-packages"):
            for info in packages.glob(f"{name}*.dist-info"):
                version = info.name.removeprefix(name).removesuffix(".dist-info")
                yield tool, version, settings(lambda file, at=packages: _text(at / file), families)


def in_wheel(path: Path) -> tuple[str, str, int]:
    tool = next(tool for tool, (name, _, _) in TOOLS.items() if path.name.startswith(name))
    with zipfile.ZipFile(path) as wheel:
        present = set(wheel.namelist())
        count = settings(lambda file: wheel.read(file).decode() if file in present else None, TOOLS[tool][2])
    return tool, path.name.split("-")[1], count


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def main() -> None:
    counted = [*installed(), *(in_wheel(Path(name)) for name in sys.argv[1:])]
    for tool, version, count in sorted(set(counted), key=lambda row: (row[0], [int(n) for n in _numbers(row[1])])):
        print(f"{tool:<14} {version:<12} {count:>4}  {'█' * round(count / _BAR)}")


def _numbers(version: str) -> list[str]:
    return version.split("+")[0].split(".")


if __name__ == "__main__":
    main()
