"""Looks up dotted names in the sources of Python packages, as importing an engine may need a GPU or take a minute."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from kb.records import AutoscoutError

_HOPS = 20  # limit on following imports between modules and base classes


def declared(roots: Mapping[str, Path], name: str) -> str | None:
    """Looks up a name: returns the parameters "batch, group=…" of a function, "" for anything else that exists, None if
    the name is missing.

    `roots`: package name → its folder. `name`: a function, a class, a field of a class or its base classes, an argument
    ("--flag") of a function that builds a parser, or a string in a module. Errors: AutoscoutError (exit 2) for an
    unreadable source."""
    found = _found(roots, name.split("."), _HOPS)
    return None if found is None else _signature(found) if isinstance(found, ast.FunctionDef) else ""


def _found(roots: Mapping[str, Path], parts: Sequence[str], hops: int) -> ast.AST | None:
    if not hops or parts[0] not in roots:
        return None
    place, inside = roots[parts[0]], 1
    while inside < len(parts) and (place / parts[inside]).is_dir():
        place, inside = place / parts[inside], inside + 1
    package = parts[:inside]  # the package to which the module's relative imports refer
    if inside < len(parts) and (place / f"{parts[inside]}.py").is_file():
        place, inside = place / f"{parts[inside]}.py", inside + 1
    elif (place / "__init__.py").is_file():
        place /= "__init__.py"
    else:
        return None
    tree = _tree(place)
    if inside == len(parts):
        return tree
    for node in _statements(tree):
        if parts[inside] in _names(node):
            return _member(roots, parts[:inside], node, parts[inside + 1 :], hops - 1)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == parts[inside]:
                    origin = [*package[: len(package) + 1 - node.level]] if node.level else []
                    there = [*origin, *(node.module.split(".") if node.module else ()), alias.name]
                    return _found(roots, [*there, *parts[inside + 1 :]], hops - 1)
    return next((node for node in tree.body if _constant(node) == parts[inside]), None)


def _member(
    roots: Mapping[str, Path], module: Sequence[str], node: ast.AST, rest: Sequence[str], hops: int
) -> ast.AST | None:
    """Resolves the part of a dotted name after the module in the module's syntax tree; None if there is no such
    member."""
    if not rest:
        return node
    if isinstance(node, ast.FunctionDef):
        return next((call for call in ast.walk(node) if isinstance(call, ast.Call) and rest[0] in _added(call)), None)
    if not isinstance(node, ast.ClassDef):
        return None
    own = next((each for each in node.body if rest[0] in _names(each)), None)
    bases = (base.id for base in node.bases if isinstance(base, ast.Name))
    inherited = (_found(roots, [*module, base, *rest], hops) for base in bases)
    return own or next((found for found in inherited if found is not None), None)


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yields a module's statements, including those under `if` and `try`."""
    waiting = [*tree.body]
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.If | ast.Try):
            waiting += [*node.body, *node.orelse, *(s for h in getattr(node, "handlers", []) for s in h.body)]


def _names(node: ast.AST) -> set[str]:
    """Returns the names that a statement binds, including the alias of a pydantic model's field."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        given = node.value.keywords if isinstance(node.value, ast.Call) else []
        aliases = {k.value.value for k in given if k.arg == "alias" and isinstance(k.value, ast.Constant)}
        return {node.target.id, *(a for a in aliases if isinstance(a, str))}
    return set()


def _constant(node: ast.AST) -> object:
    return node.value.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) else None


def _added(call: ast.Call) -> set[object]:
    """Returns the argument names that a call adds to a parser."""
    adds = isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
    return {word.value for word in call.args if isinstance(word, ast.Constant)} if adds else set()


def _signature(node: ast.FunctionDef) -> str:
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    without = len(plain) - len(given.defaults)
    words = [p.arg if i < without else f"{p.arg}=…" for i, p in enumerate(plain)]
    if given.posonlyargs:
        words.insert(len(given.posonlyargs), "/")
    if given.vararg or given.kwonlyargs:
        words.append(f"*{given.vararg.arg if given.vararg else ''}")
    words += [p.arg if d is None else f"{p.arg}=…" for p, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return ", ".join([*words, f"**{given.kwarg.arg}"] if given.kwarg else words)


@lru_cache(maxsize=64)
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text())
    except (OSError, SyntaxError, ValueError) as error:
        raise AutoscoutError(f"{path}: cannot be read as Python ({error})", 2) from error
