"""A script of bash as far as `init` reads it: its commands one after another, and the variables that it sets.

Nothing is run. Of an `if` whose condition is not known the first branch is read; loops and cases are read once, and the
last value of a variable counts. What a command would print, `$(…)`, stands for itself.
"""

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Mapping

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_BEFORE = ("exec", "eval", "time", "nohup", "do", "{")  # words before a command
_ARRAY = re.compile(r"(?:(?:declare|local|readonly|typeset)\s+(?:-\w+\s+)*)?(\w+)(\+?)=\((.*)\)", re.DOTALL)
_IF = re.compile(r"\s*(if|elif)\s+(.*)", re.DOTALL)
_TEST = re.compile(r"(!?)\s*\[\[?\s+(!?)(.*?)\s+\]\]?")
_HERE = re.compile(r"(?<!<)<<-?\s*['\"]?(\w+)")
_PRINTED = r"\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`"
# What is quoted, or printed by a command; else where input and output come from and go to, or the end of the command.
_SHELL = re.compile(
    rf"""("(?:\\.|[^"\\])*"|'[^']*'|\\.)|({_PRINTED})"""
    r"""|(?:(?<!\S)\d+|&)?>(?:\s*>\(.*?\)|>?&\d|>?\s*[^\s|&;>]+)"""
    r"""|<{1,3}\s*(?:"[^"]*"|'[^']*'|[^\s|&;<]+)|[|&].*""",
    re.DOTALL,
)
_PIECE = re.compile(r"""'[^']*'|"(?:\\.|\$\{[^{}]*\}|[^"\\])*"|(?:\\.|\$\{[^{}]*\}|[^'"\\])+""", re.DOTALL)
_ALL_OF = re.compile(r'"\$\{(\w+)\[[@*]\]\}"')
_VALUE = re.compile(r"\$\{(\w+)(?:(\[[@*]\])|:?[-=]([^{}]*))?\}|\$(\w+)|\$\(\(([^()]*)\)\)")
_SUMS = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def commands(text: str) -> Iterator[str]:
    """They end at a new line, `;`, `&&` and `||`, these two not in the condition of an `if`. Comments are left out, and
    here-documents that no shell reads; what is quoted, and arrays, may go over several lines."""
    text = re.sub(r"\\[ \t]*\r?\n", " ", text)
    now: list[str] = []
    quote, depth, at, ends = "", 0, 0, ""
    while at < len(text):
        c, pair = text[at], text[at : at + 2]
        before = now[-1] if now else " "
        at += 1
        if quote:
            quote = "" if c == quote else quote
            if c == "\\" and quote == '"':
                c, at = pair, at + 1
        elif c == "\\" or pair in ("$(", "<(", ">("):
            depth += c != "\\"
            c, at = pair, at + 1
        elif c in "'\"":
            quote = c
        elif c == "#" and (before.isspace() or before == "("):
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
            continue
        elif c == "(" and (depth or before == "="):
            depth += 1
        elif c == ")" and depth:
            depth -= 1
        elif c == "\n" and depth:
            c = " "
        elif not depth and (c in "\n;" or (pair in ("&&", "||") and not _IF.match("".join(now)))):
            at += pair in ("&&", "||")
            if command := "".join(now).strip():
                here = _HERE.search(command)
                ends = here[1] if here and not re.search(r"\b(?:sh|bash|sbatch|srun)\b", command) else ends
                yield command
            if c == "\n" and ends:
                over = re.compile(rf"^\s*{ends}\s*$", re.MULTILINE).search(text, at)
                at, ends = over.end() if over else at, ""
            now = []
            continue
        now.append(c)
    if command := "".join(now).strip():
        yield command


def taken(text: str, known: Mapping[str, str]) -> Iterator[str]:
    """The commands in the branches that are taken, as far as the variables known by then tell."""
    opened: list[tuple[bool, bool]] = []  # of each `if`: whether a branch of it was taken, and whether this one is
    for command in commands(text):
        word, _, rest = command.partition(" ")
        outside = all(here for _, here in opened[:-1])
        if (condition := _IF.fullmatch(command)) is not None:
            done = condition[1] == "elif" and bool(opened) and opened.pop()[0]
            here = not done and _holds(filled(condition[2], known)) is not False
            opened.append((done or here, here))
            continue
        if opened and word in ("else", "fi"):
            done, _ = opened.pop()
            if word == "fi":
                continue
            opened.append((True, not done))
        elif word != "then":
            rest = command
        if rest.strip() and outside and all(here for _, here in opened):
            yield rest.strip()


def _holds(condition: str) -> bool | None:
    """None: not known."""
    parts = re.split(r"\|\||&&", condition)
    each = [_is(part.strip()) for part in parts]
    if len(parts) > 1 and "&&" in condition and "||" in condition:
        return None
    least = "&&" not in condition
    return least if least in each else None if None in each else not least


def _is(test: str) -> bool | None:
    found = _TEST.fullmatch(test)
    asked = words(found[3]) if found else []
    if found is None or any("$" in word for word in asked):
        return None
    negated = bool(found[1]) != bool(found[2])
    if len(asked) <= 2 and asked[:1] in (["-z"], ["-n"]):
        return ((asked[0] == "-z") == (len(asked) < 2 or not asked[1])) != negated
    if len(asked) == 3 and asked[1] in ("=", "==", "!=", "-eq", "-ne"):
        return ((asked[0] == asked[2]) == (asked[1] in ("=", "==", "-eq"))) != negated
    return None


def filled(text: str, known: Mapping[str, str], whole: bool = False) -> str:
    """With the values of known variables: `$NAME`, `${NAME[@]}`, `${NAME:-else}` and sums, `$((…))`. `whole`: values
    are not split into words, as where they are assigned."""

    def piece(found: re.Match[str]) -> str:
        part = found[0]
        if part[0] == "'":
            return part
        if part[0] == '"':
            every = _ALL_OF.fullmatch(part)
            return known.get(every[1], part) if every else f'"{_expanded(part[1:-1], known, _escaped)}"'
        return _expanded(part, known, shlex.quote if whole else str)

    return _PIECE.sub(piece, text)


def _escaped(value: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", value)


def _expanded(text: str, known: Mapping[str, str], put: Callable[[str], str]) -> str:
    """`put`: how a value stands in the text."""

    def value(found: re.Match[str]) -> str:
        if found[5] is not None:
            numbers = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", lambda name: known.get(name[1], name[0]), found[5])
            return _sum(numbers, found[0])
        said = known.get(found[1] or found[4], "")
        if not said and found[3] is not None:
            said = _expanded(found[3].strip("\"'"), known, str)
        elif (found[1] or found[4]) not in known:
            return found[0]
        if found[2] and put is str:  # its elements are split into words again
            return shlex.join(word for element in words(said) for word in element.split())
        return put(said)

    return _VALUE.sub(value, text)


def _sum(text: str, unknown: str) -> str:
    """Of whole numbers."""
    try:
        tree = ast.parse(text.strip().replace("/", "//"), mode="eval")
        numbers = (isinstance(node, ast.Constant) and type(node.value) is int for node in ast.walk(tree))
        if all(number or isinstance(node, _SUMS) for number, node in zip(numbers, ast.walk(tree), strict=True)):
            return str(eval(compile(tree, "", "eval")))
    except (SyntaxError, ValueError, ZeroDivisionError, TypeError):
        pass
    return unknown


def words(command: str) -> list[str]:
    """Of one command, without what becomes of its output and without `"$@"`, as `sbatch` calls a script with none; none
    where its quotes do not end."""
    try:
        found = shlex.split(_SHELL.sub(lambda m: m[1] or (shlex.quote(m[2]) if m[2] else " "), command))
    except ValueError:
        return []
    while found and found[0] in _BEFORE:
        found = found[1:]
    return [word for word in found if word not in ("$@", "$*")]


def unwrapped(line: list[str]) -> list[str]:
    """A line that ends in `bash -c TEXT`, as a container's, with the words of TEXT's last command at its own end, where
    they can be changed: bash does what comes before and then becomes that command. As it is where a shell has to fill
    in some of them."""
    shell = next((i for i in range(len(line) - 2, 0, -1) if line[i] in ("bash", "sh")), 0)
    options = line[shell + 1 : -1]
    if (
        not shell
        or not options
        or not all(re.fullmatch(r"-[a-z]+", word) for word in options)
        or options[-1][-1] != "c"
    ):
        return line
    text = line[-1]
    inside = [*commands(text)]
    last = words(inside[-1]) if inside else []
    at = text.rfind(inside[-1]) if inside else -1
    if at < 0 or not last or any(re.search(r"[$`]", word) for word in last):
        return line
    last = ["env", *last] if ASSIGNED.fullmatch(last[0]) else last
    before = text[:at].strip()
    if not before and options == ["-c"]:
        return [*line[:shell], *last]
    return [*line[:-1], f'{before} exec "$@"'.strip(), line[shell], *last]


def sets(command: str, known: dict[str, str], exported: dict[str, str]) -> bool:
    """Whether a command sets variables and nothing else; these are then known, and exported. What a script is called
    with (`$1`) is not, so that a default stays."""
    if array := _ARRAY.fullmatch(command):
        known[array[1]] = " ".join([*([known.get(array[1], "")] if array[2] else []), filled(array[3], known).strip()])
        return True
    of_line = words(filled(command, known, whole=True))
    names = of_line[1:] if of_line[:1] and of_line[0] in _DECLARES else of_line
    declared = len(names) < len(of_line)
    assigned = [ASSIGNED.fullmatch(name) for name in names]
    if not names or not all(found or declared for found in assigned):
        return False
    for name, found in zip(names, assigned, strict=True):
        key = found[1] if found else name
        if found and not re.search(r"\$\{?\d", found[3]):
            known[key] = known.get(key, "") * bool(found[2]) + found[3]
        if of_line[0] == "export" and key in known:
            exported[key] = known[key]
    return True
