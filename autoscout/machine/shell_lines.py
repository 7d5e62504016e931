"""A script of bash as far as `init` reads it: its commands one after another, and the variables that it sets.

Nothing is run. Of an `if` whose condition is not known the first branch is read, of a case all branches; loops are read
once, with the last value of their variable. A script is called with nothing, so `$1` is empty where it is asked about.
What a command would print, `$(…)`, stands for itself.
"""

import ast
import fnmatch
import itertools
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_BEFORE = ("exec", "eval", "time", "nohup", "do", "{")  # words before a command
_ORDERS = {"-lt": operator.lt, "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge}
_FOR = re.compile(r"for\s+(\w+)\s+in\s+(.*)", re.DOTALL)
_ARRAY = re.compile(r"(?:(?:declare|local|readonly|typeset)\s+(?:-\w+\s+)*)?(\w+)(\+?)=\((.*)\)", re.DOTALL)
_IF = re.compile(r"\s*(?:(?:then|do|else)\s+)*(if|elif|while)\s+(.*)", re.DOTALL)
_CASE = re.compile(r"case\s+(.*?)\s+in\b\s*(.*)", re.DOTALL)
_PATTERN = re.compile(r"\(?\s*([^\s()]+(?:\s*\|\s*[^\s()]+)*)\s*\)\s*(.*)", re.DOTALL)
_ENDS = {"fi": "if", "done": "loop", "esac": "case"}
_READ = re.compile(r"(?:IFS=(\S+)\s+)?read\s+(?:-\w+\s+)*(\w+(?:\s+\w+)*)\s*<<<\s*(.*)", re.DOTALL)
_LINES = re.compile(r"(?:mapfile|readarray)\s+(?:-\w+\s+)*(\w+)\b.*", re.DOTALL)  # of another command's output
_ARGUMENTS = re.compile(r"\$[@*]|\$\{[@*](?::\d+)?\}")
_GIVEN = re.compile(r"\$(?:[1-9@*]|\{[1-9@*]\})")  # what a script is called with: nothing
_TEST = re.compile(r"(!?)\s*\[\[?\s+(!?)(.*?)\s+\]\]?")
_HERE = re.compile(r"(?<!<)<<-?\s*['\"]?(\w+)")
_PRINTED = r"\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`"
# What is quoted, or printed by a command; else where input and output come from and go to, or the end of the command.
_SHELL = re.compile(
    rf"""("(?:\\.|[^"\\])*"|'[^']*'|\\.)|({_PRINTED})"""
    r"""|(?:(?<!\S)\d+|&)?>(?:\s*>\(.*?\)|>?&\d|>?\s*(?:"(?:\\.|[^"\\])*"|'[^']*'|[^\s|&;>"'])+)"""
    r"""|<{1,3}\s*(?:"[^"]*"|'[^']*'|[^\s|&;<]+)|[|&].*""",
    re.DOTALL,
)
_INSIDE = r"[^{}]"
for _ in range(4):  # of `${A:-${B:-else}}`
    _INSIDE = rf"(?:[^{{}}]|\$\{{{_INSIDE}*\}})"
_BRACED = rf"\$\{{{_INSIDE}*\}}"
_PIECE = re.compile(rf"""'[^']*'|"(?:\\.|{_BRACED}|[^"\\])*+"|(?:\\.|{_BRACED}|[^'"\\])++""", re.DOTALL)
_ALL_OF = re.compile(r'"\$\{(\w+)\[[@*]\]\}"')
_VALUE = re.compile(
    rf"\\.|\$\{{(?P<braced>\w+)(?:(?P<all>\[[@*]\])|:?(?P<how>[-=+])(?P<other>{_INSIDE}*)"
    r"|(?P<cut>##?|%%?)(?P<pattern>[^{}$]+)|(?P<case>,,|\^\^))?\}"
    r"|\$(?P<plain>\w+)|\$\(\((?P<sum>(?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\)|(?P<here>`pwd`|\$\(pwd\))",
    re.DOTALL,
)
_HOME = re.compile(r"(?<!\S)((?:[A-Za-z_]\w*=)?)~(?=[/\s]|$)")
_SUMS = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def commands(text: str) -> Iterator[str]:
    """They end at a new line, `;`, `&&` and `||`, these two not in the condition of an `if`. Comments are left out, and
    here-documents that no shell reads; what is quoted, and arrays, may go over several lines."""
    text = text.replace("\r\n", "\n")
    now: list[str] = []
    quote, depth, at, ends = "", 0, 0, ""
    while at < len(text):
        c, pair = text[at], text[at : at + 2]
        before = now[-1] if now else " "
        at += 1
        if pair == "\\\n" and quote != "'":
            at += 1
            continue
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


def taken(text: str, known: Mapping[str, str], unsure: bool = True) -> Iterator[str]:
    """The commands in the branches that are taken, as far as the variables known by then tell; of a case whose subject
    is not known all are. `unsure`: whether a condition holds that is not known."""
    opened: list[_Opened] = []
    for command in commands(text):
        word, _, rest = command.partition(" ")
        while word in ("then", "do", "else"):
            if word == "else" and opened:
                opened[-1] = opened[-1].next(True)
            command = rest.strip()
            word, _, rest = command.partition(" ")
        if word in _ENDS:
            if opened and opened[-1].kind == _ENDS[word]:
                opened.pop()
            continue
        if (condition := _IF.fullmatch(command)) is not None:
            sure = _holds(filled(condition[2], known))
            holds = sure or (sure is None and (unsure or condition[1] == "while"))
            if condition[1] == "elif" and opened:
                opened[-1] = opened[-1].next(holds)
            else:
                opened.append(_Opened("loop" if condition[1] == "while" else "if", holds, holds))
            continue
        if word in ("for", "until", "select"):
            opened.append(_Opened("loop", True, True))
        elif (case := _CASE.fullmatch(command)) is not None:
            subject = words(_GIVEN.sub("", filled(case[1], known)))
            known_one = not any(re.search(r"[$`]", part) for part in subject)
            opened.append(_Opened("case", False, True, " ".join(subject) if known_one else None))
            command = case[2]
        if opened and opened[-1].kind == "case" and (branch := _PATTERN.fullmatch(command)) is not None:
            command = branch[2]
            if (one := opened[-1].subject) is not None:
                patterns = ["".join(words(pattern)) for pattern in branch[1].split("|")]
                opened[-1] = opened[-1].next(any(fnmatch.fnmatchcase(one, pattern) for pattern in patterns))
        if command and all(block.here for block in opened):
            yield command


class _Opened(NamedTuple):
    """A block: whether a branch of it was `taken`, and whether this one is. `subject`: a case's, None if not known."""

    kind: str
    taken: bool
    here: bool
    subject: str | None = None

    def next(self, holds: bool) -> "_Opened":
        return self._replace(here=holds and not self.taken, taken=self.taken or holds)


def _holds(condition: str) -> bool | None:
    """None: not known."""
    condition = _GIVEN.sub("", condition.replace("$#", "0"))
    parts = re.split(r"\|\||&&", condition)
    each = [_is(part.strip()) for part in parts]
    if len(parts) > 1 and "&&" in condition and "||" in condition:
        return None
    least = "&&" not in condition
    return least if least in each else None if None in each else not least


def _is(test: str) -> bool | None:
    if test.startswith("getopts "):
        return False
    found = _TEST.fullmatch(test)
    asked = words(found[3]) if found else []
    if found is None or any("$" in word for word in asked):
        return None
    negated = bool(found[1]) != bool(found[2])
    if len(asked) <= 2 and asked[:1] in (["-z"], ["-n"]):
        return ((asked[0] == "-z") == (len(asked) < 2 or not asked[1])) != negated
    if len(asked) == 3 and asked[1] in ("=", "==", "!=", "-eq", "-ne"):
        return ((asked[0] == asked[2]) == (asked[1] in ("=", "==", "-eq"))) != negated
    if len(asked) == 3 and asked[1] in _ORDERS and all(re.fullmatch(r"-?\d+", number) for number in asked[::2]):
        return _ORDERS[asked[1]](int(asked[0]), int(asked[2])) != negated
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
        return _expanded(_HOME.sub(rf"\1{known.get('HOME', '~')}", part), known, put)

    # `eval` reads the quotes in a value; else they are part of its words
    put = str if text.lstrip().startswith("eval ") else shlex.quote if whole else _split
    return _PIECE.sub(piece, text)


def _escaped(value: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", value)


def _split(value: str) -> str:
    """At its blanks alone, not at those within `$(…)`."""
    found = " ".join(map(shlex.quote, re.findall(rf"(?:{_PRINTED}|\S)+", value)))
    return f"{' ' * value[:1].isspace()}{found}{' ' * value[-1:].isspace()}"


def _expanded(text: str, known: Mapping[str, str], put: Callable[[str], str]) -> str:
    """`put`: how a value stands in the text."""

    def value(found: re.Match[str]) -> str:
        if found["sum"] is not None:
            numbers = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", lambda name: known.get(name[1], name[0]), found["sum"])
            return _sum(numbers, found[0])
        name = "PWD" if found["here"] else found["braced"] or found["plain"] or ""
        said = known.get(name, "")
        if found["how"] and (found["how"] == "+") == bool(said):
            other = found["other"].strip("\"'")
            quoted = put is _escaped or other != found["other"]
            said = _expanded(other if quoted else _HOME.sub(known.get("HOME", "~"), other), known, str)
            return shlex.quote(said) if quoted and put is _split else put(said)
        if name not in known and found["how"] != "+":
            return found[0]
        if found["all"]:
            elements = words(said)
            return " ".join(map(_split, elements)) if put is _split else put(" ".join(elements))
        return put(_part(said, found))

    return _VALUE.sub(value, text)


def _part(said: str, found: re.Match[str]) -> str:
    """Without what `${NAME#…}` and `${NAME%…}` take off, in the letters of `${NAME,,}`."""
    if found["case"]:
        return said.lower() if found["case"] == ",," else said.upper()
    if not found["cut"]:
        return said
    ends = range(len(said) + 1)
    ends = ends if found["cut"] in ("#", "%%") else reversed(ends)
    for end in ends:
        before, after = said[:end], said[end:]
        if fnmatch.fnmatchcase(before if found["cut"][0] == "#" else after, found["pattern"].strip("\"'")):
            return after if found["cut"][0] == "#" else before
    return said


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
        found = shlex.split(_SHELL.sub(lambda m: _plain(m[1]) if m[1] else shlex.quote(m[2]) if m[2] else " ", command))
    except ValueError:
        return []
    set_first = [*itertools.takewhile(ASSIGNED.fullmatch, found)]  # `NAME=value nohup command`
    found = found[len(set_first) :]
    while found and found[0] in _BEFORE:
        found = found[1:]
    return [word for word in [*set_first, *found] if not _ARGUMENTS.fullmatch(word)]


def _plain(quoted: str) -> str:
    """Without the escapes within double quotes that shlex does not read."""
    if quoted[0] != '"':
        return quoted
    return re.sub(r"\\(.)", lambda m: m[1] if m[1] in "$`" else m[0], quoted, flags=re.DOTALL)


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
    if loop := _FOR.fullmatch(command):
        values = words(filled(loop[2], known))
        known.pop(loop[1], None)
        if values and not re.search(r"[$`{*]", values[-1]):
            known[loop[1]] = values[-1]
        return True
    if read := _READ.fullmatch(command):
        names, told = read[2].split(), words(filled(read[3], known))
        separator = "".join(words(read[1] or "")) or None
        values = told[0].split(separator, len(names) - 1) if len(told) == 1 and "$" not in told[0] else []
        for name in names:
            known.pop(name, None)
        known.update(zip(names, values, strict=False))
        return True
    if lines := _LINES.fullmatch(command):
        known.pop(lines[1], None)
        return True
    if command.startswith(": "):
        for found in _VALUE.finditer(command):
            if found["how"] == "=" and not known.get(found["braced"]):
                known[found["braced"]] = _expanded(found["other"].strip("\"'"), known, str)
        return True
    of_line = words(filled(command, known, whole=True))
    names = of_line[1:] if of_line[:1] and of_line[0] in _DECLARES else of_line
    declared = len(names) < len(of_line)
    assigned = [ASSIGNED.fullmatch(name) for name in names]
    if not names or not all(found or declared for found in assigned):
        return False
    for name, found in zip(names, assigned, strict=True):
        key = found[1] if found else name
        if found and not re.search(rf"\$\{{?(?:\d|{key}\}}?$)", found[3]):
            known[key] = known.get(key, "") * bool(found[2]) + found[3]
        if of_line[0] == "export" and key in known:
            exported[key] = known[key]
    return True
