"""Reads the arguments of vLLM's engine by version from its source: fixtures/recorded/vllm-arguments.json.

python tests/tools/vllm_arguments.py VERSION=arg_utils.py …     vllm/engine/arg_utils.py of each version's sdist
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[2] / "fixtures" / "recorded" / "vllm-arguments.json"


def arguments(source: str) -> dict[str, Any]:
    """EngineArgs's fields → their defaults; None if computed."""
    tree = ast.parse(source)
    engine = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "EngineArgs")
    found = {}
    for node in engine.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            plain = node.value.value if isinstance(node.value, ast.Constant) else None
            found[node.target.id] = plain
    return found


def answers() -> dict[str, dict[str, Any]]:
    return json.loads(RECORDED.read_text())


if __name__ == "__main__":
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    told = {version: arguments(Path(path).read_text()) for version, path in given.items()}
    RECORDED.write_text(json.dumps(told, indent=1) + "\n")
