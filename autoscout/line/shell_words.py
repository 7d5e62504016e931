"""Expands the words of a command, and tracks the variables that commands set, like bash but without executing anything.

The output of an unknown command, `$(…)`, is left unexpanded. A loop variable has its last value."""

import fnmatch
import re
import shlex
from collections.abc import Callable, Mapping
from itertools import pairwise, takewhile

from autoscout.line.shell_prints import printed, total

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_BEFORE = ("exec", "eval", "time", "nohup", "do", "{")  # words that may precede a command
_FOR = re.compile(r"for\s+(\w+)\s+in\s+(.*)", re.DOTALL)
_ARRAY = re.compile(r"(?:(?:export|declare|local|readonly|typeset)\s+(?:-\w+\s+)*)?(\w+)(\+?)=\((.*)\)", re.DOTALL)
_READ = re.compile(r"(?:IFS=(\S+)\s+)?read\s+(?:-\w+\s+)*(\w+(?:\s+\w+)*)\s*<<<\s*(.*)", re.DOTALL)
# Commands that read the output of a second command into a variable.
_LINES = re.compile(r"(?:mapfile|readarray)\s+(?:-\w+\s+)*(\w+)\b.*", re.DOTALL)
_ARGUMENTS = re.compile(r"\$[@*]|\$\{[@*](?::(\d+))?\}")  # all arguments of the script
_SHIFT = re.compile(r"shift(?:\s+(\d+))?")
_WITHIN = r"[^()]"
for _ in range(3):  # three levels of nested parentheses, as in `$(python -c "print(len(list()))")`
    _WITHIN = rf"(?:[^()]|\({_WITHIN}*\))"
QUOTED = r""""(?:\\.|[^"\\])*"|'[^']*'|\\."""
PRINTED = rf"\$\({_WITHIN}*\)|`[^`]*`"
# Matches quoted text or a command substitution (groups 1 and 2), which are kept; also redirections and everything after
# the command (`|` or `&`), which are removed.
_SHELL = re.compile(
    rf"({QUOTED})|({PRINTED})"
    rf"""|(?:(?<!\S)\d+|&)?>(?:\s*>\({_WITHIN}*\)"""
    r"""|>?&\d|>?\s*(?:"(?:\\.|[^"\\])*"|'[^']*'|[^\s|&;>"'])+)"""
    r"""|<{1,3}\s*(?:"[^"]*"|'[^']*'|[^\s|&;<]+)|[|&].*""",
    re.DOTALL,
)
_INSIDE = r"[^{}]"
for _ in range(4):  # four levels of nesting, as in `${A:-${B:-else}}`
    _INSIDE = rf"(?:[^{{}}]|\$\{{{_INSIDE}*\}})"
_BRACED = rf"\$\{{{_INSIDE}*\}}"
# Commands whose output `shell_prints` computes.
_PRINTS = r"(?:dirname|basename|date|expr|echo)"
_COMPUTED = rf"\$\(\s*{_PRINTS}\s{_WITHIN}*\)"  # may have quotes inside, also within quotes
_PIECE = re.compile(
    rf"""'[^']*'|"(?:\\.|{_BRACED}|{_COMPUTED}|[^"\\])*+"|(?:\\.|{_BRACED}|{_COMPUTED}|[^'"\\])++""", re.DOTALL
)
_ALL_OF = re.compile(r'"\$\{(\w+)\[[@*]\]\}"')
_VALUE = re.compile(
    rf"\\.|\$\{{(?P<braced>\w+)(?:(?P<all>\[[@*]\])|:?(?P<how>[-=+?])(?P<other>{_INSIDE}*)"
    r"|(?P<cut>##?|%%?)(?P<pattern>[^{}$]+)|(?P<case>,,|\^\^))?\}"
    r"|\$(?P<plain>\w+)|\$\(\((?P<sum>(?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\)|(?P<here>`pwd`|\$\(pwd\))|\$(?P<count>#)"
    rf"|\$\(\s*(?P<prints>{_PRINTS}\s{_WITHIN}*)\)|`(?P<printed>{_PRINTS}\s[^`]*)`",
    re.DOTALL,
)
_HOME = re.compile(r"(?<!\S)((?:[A-Za-z_]\w*=)?)~(?=[/\s]|$)")


def filled(text: str, known: Mapping[str, str], whole: bool = False) -> str:
    """Expands the known variables in a text: `$NAME`, `${NAME[@]}`, `${NAME:-else}` and sums, `$((…))`. `whole`: do not
    split values into words, as in an assignment."""

    def given(found: re.Match[str]) -> list[str]:
        return shlex.split(known["@"])[max(int(found[1] or 1) - 1, 0) :]

    def split(found: re.Match[str]) -> str:
        return shlex.join(" ".join(given(found)).split())

    def piece(found: re.Match[str]) -> str:
        part = found[0]
        if part[0] == "'":
            return part
        if "@" in known and part[0] == '"':
            if every := _ARGUMENTS.fullmatch(part[1:-1]):
                return shlex.join(given(every))
            part = _ARGUMENTS.sub(lambda found: _escaped(" ".join(given(found))), part)
        elif "@" in known:
            part = _ARGUMENTS.sub(split, part)
        if part[0] == '"':
            every = _ALL_OF.fullmatch(part)
            return known.get(every[1], part) if every else f'"{_expanded(part[1:-1], known, _escaped)}"'
        return _expanded(_HOME.sub(rf"\1{known.get('HOME', '~')}", part), known, put)

    # `eval` interprets quotes in a value; in any other command they are literal characters.
    put = str if text.lstrip().startswith("eval ") else shlex.quote if whole else _split
    return _PIECE.sub(piece, text)


def in_text(text: str, known: Mapping[str, str]) -> str:
    """Expands the known variables in a here-document, where quotes are plain characters."""
    return _expanded(text, known, str)


def _escaped(value: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", value)


def _split(value: str) -> str:
    """Returns the value as words split at whitespace, except inside `$(…)`."""
    found = " ".join(map(shlex.quote, re.findall(rf"(?:{PRINTED}|\S)+", value)))
    return f"{' ' * value[:1].isspace()}{found}{' ' * value[-1:].isspace()}"


def _expanded(text: str, known: Mapping[str, str], put: Callable[[str], str]) -> str:
    """Returns the text with known variables replaced. `put`: converts a value to text, with quotes or split into
    words."""

    def value(found: re.Match[str]) -> str:
        if found["sum"] is not None:
            inside = _expanded(found["sum"], known, str)
            numbers = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", lambda name: known.get(name[1], name[0]), inside)
            return total(numbers) or found[0]
        if (command := found["prints"] or found["printed"]) is not None:
            text = printed(filled(command, known))
            return found[0] if text is None else put(text)
        name = "PWD" if found["here"] else found["count"] or found["braced"] or found["plain"] or ""
        current = known.get(name, "")
        if found["how"] == "?" and not current:
            return found[0]
        if found["how"] in ("-", "=", "+") and (found["how"] == "+") == bool(current):
            other = found["other"].strip("\"'")
            quoted = put is _escaped or other != found["other"]
            current = _expanded(other if quoted else _HOME.sub(known.get("HOME", "~"), other), known, str)
            return shlex.quote(current) if quoted and put is _split else put(current)
        if name not in known and found["how"] != "+":
            return found[0]
        if found["all"]:
            elements = words(current)
            return " ".join(map(_split, elements)) if put is _split else put(" ".join(elements))
        return put(_part(current, found))

    return _VALUE.sub(value, text)


def _part(value: str, found: re.Match[str]) -> str:
    """Returns `value` without the prefix of `${NAME#…}` or the suffix of `${NAME%…}`, or in the case of `${NAME,,}`."""
    if found["case"]:
        return value.lower() if found["case"] == ",," else value.upper()
    if not found["cut"]:
        return value
    ends = range(len(value) + 1)
    ends = ends if found["cut"] in ("#", "%%") else reversed(ends)
    for end in ends:
        before, after = value[:end], value[end:]
        if fnmatch.fnmatchcase(before if found["cut"][0] == "#" else after, found["pattern"].strip("\"'")):
            return after if found["cut"][0] == "#" else before
    return value


def words(command: str) -> list[str]:
    """Splits one command into words, without redirections and the rest of a pipeline. An unexpanded `$@` is removed,
    since the script's arguments are then unknown. Empty if a quote is unclosed."""
    try:
        found = shlex.split(_SHELL.sub(lambda m: _plain(m[1]) if m[1] else shlex.quote(m[2]) if m[2] else " ", command))
    except ValueError:
        return []
    set_first = [*takewhile(ASSIGNED.fullmatch, found)]  # handles `NAME=value nohup command`
    found = found[len(set_first) :]
    while found and found[0] in _BEFORE:
        found = found[1:]
    return [word for word in [*set_first, *found] if not _ARGUMENTS.fullmatch(word)]


def _plain(quoted: str) -> str:
    """Returns the text without the escapes in double quotes that shlex does not remove."""
    if quoted[0] != '"':
        return quoted
    return re.sub(r"\\(.)", lambda m: m[1] if m[1] in "$`" else m[0], quoted, flags=re.DOTALL)


def assigned(of_line: list[str]) -> tuple[dict[str, str], list[str]]:
    """Returns (variables set before a command, words of the command), for lines such as `CUDA_VISIBLE_DEVICES=0 vllm
    serve …`."""
    plain = (
        # `env -u NAME …` has options, so `env` stays part of the command
        ASSIGNED.fullmatch(word) or (word == "env" and not after.startswith("-"))
        for word, after in pairwise([*of_line, ""])
    )
    count = next((i for i, sets_one in enumerate(plain) if not sets_one), len(of_line))
    pairs = (found for word in of_line[:count] if (found := ASSIGNED.fullmatch(word)))
    return {found[1]: found[3] for found in pairs}, of_line[count:]


def shifted(known: Mapping[str, str], by: int) -> dict[str, str]:
    """Returns the values of `$1`, `$#` and `$@` after `shift` by this number."""
    left = shlex.split(known["@"])[by:]
    numbered = {str(i + 1): "".join(left[i : i + 1]) for i in range(int(known["#"]))}
    return {**numbered, "#": str(len(left)), "@": shlex.join(left)}


def sets(command: str, known: dict[str, str], exported: dict[str, str]) -> bool:
    """Whether a command only sets variables. If so, adds these to `known`, and to `exported` if the command exports
    them. Assignments from unknown arguments of the script (`NAME=$1`) are skipped, so that the variable keeps an
    earlier default."""
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
        names, inputs = read[2].split(), words(filled(read[3], known))
        separator = "".join(words(read[1] or "")) or None
        values = inputs[0].split(separator, len(names) - 1) if len(inputs) == 1 and "$" not in inputs[0] else []
        for name in names:
            known.pop(name, None)
        known.update(zip(names, values, strict=False))
        return True
    if "@" in known and (shift := _SHIFT.fullmatch(command)):
        known.update(shifted(known, int(shift[1] or 1)))
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
    pairs = [ASSIGNED.fullmatch(name) for name in names]
    if not names or not all(found or declared for found in pairs):
        return False
    for name, found in zip(names, pairs, strict=True):
        key = found[1] if found else name
        if found and not re.search(rf"\$\{{?(?:\d|{key}\}}?$)", found[3]):
            known[key] = known.get(key, "") * bool(found[2]) + found[3]
        if of_line[0] == "export" and key in known:
            exported[key] = known[key]
    return True
