"""Determines which commands of a bash script would run, in order, without executing anything.

If the outcome of an `if` or a `case` is unknown, the first branch is assumed; loop bodies are read once. Unknown
arguments of the script are assumed to be missing, so that tests of `$1` see an empty text."""

import fnmatch
import itertools
import operator
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from autoscout.line.shell_words import ASSIGNED, PRINTED, QUOTED, filled, in_text, sets, words

_ORDERS = {"-lt": operator.lt, "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge}
_IF = re.compile(r"\s*(?:(?:then|do|else)\s+)*(if|elif|while)\s+(.*)", re.DOTALL)
_CASE = re.compile(r"case\s+(.*?)\s+in\b\s*(.*)", re.DOTALL)
_PATTERN = re.compile(r"\(?\s*([^\s()]+(?:\s*\|\s*[^\s()]+)*)\s*\)\s*(.*)", re.DOTALL)
_ENDS = {"fi": "if", "done": "loop", "esac": "case"}
_GIVEN = re.compile(r"\$(?:[1-9@*]|\{[1-9@*]\})")  # arguments of the script, treated as empty
_TEST = re.compile(r"(!?)\s*\[\[?\s+(!?)(.*?)\s+\]\]?")
_QUOTED = re.compile(QUOTED)
_ALONE = re.compile(r"\s*\[\[\s(?:(?!\]\]).)*\s\]\]\s*")  # a single test in double brackets
_HERE = re.compile(r"(?<!<)<<-?\s*['\"]?(\w+)")
_READ_BY_SHELL = re.compile(r"(?<![\w.-])(?:sh|bash|sbatch|srun)\b")
_EXPANDED = re.compile(r"[$`]")
# a word of a command, with its quotes
_TOKEN = re.compile(rf"""(?:{QUOTED}|{PRINTED}|[^\s"'\\|&;<>])+""", re.DOTALL)
_BY_POSITION = re.compile(r'\bexec\b[^;&|]*"\$\{@:\d+\}"', re.DOTALL)
# A variable whose value is a here-document: NAME=$(cat <<EOF …), or read -r -d '' NAME <<EOF …
_HERE_VALUE = re.compile(
    r"""(?:(?P<name>\b\w+=)["']?\$\(\s*cat|^[ \t]*read(?:[ \t]+(?:-\w+|''|""))+[ \t]+(?P<read>\w+))"""
    r"""[ \t]*<<-?[ \t]*(?P<quote>["']?)(?P<end>\w+)(?P=quote)[^\n]*\n(?P<body>.*?)\n[ \t]*(?P=end)[ \t]*"""
    r"""(?(name)\n?[ \t]*\)["']?|$)""",
    re.DOTALL | re.MULTILINE,
)
# A file that a script writes from a here-document; the name may stand before or after the document's word.
_HERE_FILE = re.compile(
    r"""^[ \t]*(?:cat|tee)\b(?P<before>[^\n<]*)<<-?[ \t]*(?P<quote>["']?)(?P<end>\w+)(?P=quote)(?P<after>[^\n]*)\n"""
    r"""(?P<body>.*?)^[ \t]*(?P=end)[ \t]*$""",
    re.DOTALL | re.MULTILINE,
)
_WRITTEN = re.compile(r">\s*['\"]?([^\s'\"<>|;&]+)")


def commands(text: str) -> Iterator[str]:
    """Yields a script's commands, split at newlines, `;`, `&&` and `||`. (In the condition of an `if`, `&&` and `||`
    are not separators.) Comments are skipped. Here-documents are also skipped, unless a shell runs them. Quotes and
    arrays may span lines. A here-document that is a variable's value is an assignment."""
    text = _HERE_VALUE.sub(_assignment, text.replace("\r\n", "\n"))
    now: list[str] = []
    quote, depth, at, ends = "", 0, 0, ""
    while at < len(text):
        c, pair = text[at], text[at : at + 2]
        before = now[-1] if now else " "
        at += 1
        if pair in ("\\\n", "\\") and quote != "'":  # a continued line, or a backslash at the end of the file
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
                ends = here[1] if here and not _started(command, text[at:], here[1]) else ends
                yield command
            if c == "\n" and ends:
                over = re.compile(rf"^\s*{ends}\s*$", re.MULTILINE).search(text, at)
                at, ends = over.end() if over else at, ""
            now = []
            continue
        now.append(c)
    if command := "".join(now).strip():
        yield command


def _assignment(found: re.Match[str]) -> str:
    """Returns NAME="…" for a here-document that is a variable's value, in single quotes if bash leaves it as it is."""
    body = found["body"]
    quoted = shlex.quote(body) if found["quote"] else '"' + body.replace("\\\n", " ").replace('"', '\\"') + '"'
    return f"{found['name'] or found['read'] + '='}{quoted}"


def files_written(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """Returns name → content of the files that a script writes from here-documents, with the variables known at its
    launch."""
    found: dict[str, str] = {}
    for each in _HERE_FILE.finditer(text.replace("\r\n", "\n")):
        redirected = _WRITTEN.search(each["before"] + each["after"])
        names = [redirected[1]] if redirected else each["before"].split()[-1:]
        body = each["body"] if each["quote"] else in_text(each["body"], known)
        found |= {"".join(words(filled(name, known))): body for name in names}
    return found


def _started(command: str, after: str, ends: str) -> bool:
    """Whether a shell runs a command's here-document: directly, or as a file that a later command names."""
    file = _WRITTEN.search(command)
    over = re.search(rf"^\s*{ends}\s*$", after, re.MULTILINE)
    again = file and over and re.search(rf"{re.escape(file[1].rpartition('/')[2])}\b", after[over.end() :])
    return bool(_READ_BY_SHELL.search(command) or again)


def taken(text: str, known: Mapping[str, str], unsure: bool = True) -> Iterator[str]:
    """Yields the commands in the branches that are taken, given the variables known so far. `unsure`: assume that a
    condition with an unknown outcome is true, and take the first branch of a case with an unknown subject; otherwise
    the condition is false and the second branch is taken."""
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
            sure = _holds(filled(condition[2], known), known.get("#", "0"))
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
            opened.append(_Opened("case", False, False, " ".join(subject) if known_one else None, int(not unsure)))
            command = case[2]
        if opened and opened[-1].kind == "case" and (branch := _PATTERN.fullmatch(command)) is not None:
            command = branch[2]
            opened[-1] = opened[-1].at(["".join(words(pattern)) for pattern in branch[1].split("|")])
        if command and all(block.here for block in opened):
            yield command


class _Opened(NamedTuple):
    """An open `if`, `case` or loop block. `taken`: whether a branch was taken so far. `here`: whether the current
    branch is taken. `subject`: the text that a case compares, None if unknown. `passed`: number of branches to skip if
    the subject is unknown."""

    kind: str
    taken: bool
    here: bool
    subject: str | None = None
    passed: int = 0

    def next(self, holds: bool) -> "_Opened":
        return self._replace(here=holds and not self.taken, taken=self.taken or holds)

    def at(self, patterns: list[str]) -> "_Opened":
        """Returns the block's state inside the branch with these patterns."""
        if self.subject is None:
            return self.next(self.passed == 0)._replace(passed=self.passed - 1)
        return self.next(any(fnmatch.fnmatchcase(self.subject, pattern) for pattern in patterns))


def _holds(condition: str, given: str) -> bool | None:
    """Evaluates a condition; None if its outcome is unknown. `given`: the number of the script's arguments."""
    condition = _GIVEN.sub("", condition.replace("$#", given))
    if (alone := _ALONE.fullmatch(condition)) is not None:  # each part gets brackets of its own
        condition = re.sub(r"\s(\|\||&&)\s", r" ]] \1 [[ ", alone[0])
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
    # Parse the test inside a bracket: words() would drop a first word such as `eval`, which scripts often use as the
    # name of a mode.
    asked = words(f"[ {found[3]}")[1:] if found else []
    if found is None or any("$" in word for word in asked):
        return None
    negated = bool(found[1]) != bool(found[2])
    if len(asked) <= 2 and asked[:1] in (["-z"], ["-n"]):
        return ((asked[0] == "-z") == (len(asked) < 2 or not asked[1])) != negated
    if len(asked) == 3 and asked[1] in ("=", "==", "!=", "-eq", "-ne"):
        unquoted = _QUOTED.sub("", found[3].split(maxsplit=2)[-1])
        pattern = "[[" in test[: found.start(2)] and re.search(r"[*?[]", unquoted)
        same = fnmatch.fnmatchcase(asked[0], asked[2]) if pattern else asked[0] == asked[2]
        return (same == (asked[1] in ("=", "==", "-eq"))) != negated
    if len(asked) == 3 and asked[1] in _ORDERS and all(re.fullmatch(r"-?\d+", number) for number in asked[::2]):
        return _ORDERS[asked[1]](int(asked[0]), int(asked[2])) != negated
    return None


def unwrapped(line: list[str]) -> list[str]:
    """If a line ends in `bash -c TEXT`, as for containers, returns the line with TEXT replaced by the words of its last
    command, so that these words can be changed. (bash runs the commands before the last one, which then replaces the
    shell.) Words that a shell has to expand stay in the text; the line is unchanged if one of them follows the
    script."""
    shell = next((i for i in range(len(line) - 2, -1, -1) if line[i] in ("bash", "sh")), len(line))
    options = line[shell + 1 : -1]
    if not options or not all(re.fullmatch(r"-[a-z]+", word) for word in options) or options[-1][-1] != "c":
        return line
    text = line[-1].replace("\\\n", "")
    inside = [*commands(text)]
    known: dict[str, str] = {}
    for command in inside[:-1]:
        sets(command, known, {})
    command = filled(inside[-1], known) if inside else ""
    last = words(command)
    at = text.rfind(inside[-1]) if inside else -1
    if at < 0 or not last:
        return line
    before = text[:at].strip()
    if any(_EXPANDED.search(word) for word in last):
        found = _expanding(command, last) if line[shell] == "bash" else None
        return [*line[:-1], f"{before} {found[0]}".strip(), line[shell], *found[1]] if found else line
    last = ["env", *last] if ASSIGNED.fullmatch(last[0]) else last
    if not before and options == ["-c"]:
        return [*line[:shell], *last]
    return [*line[:-1], f'{before} exec "$@"'.strip(), line[shell], *last]


def _expanding(command: str, found: list[str]) -> tuple[str, list[str]] | None:
    """Splits a command between bash's text, which has the words that bash expands and refers to the others by their
    positions, and those other words. Flags after the script whose values bash expands end the text. None if it cannot
    be split: without a Python script, or if bash expands one of the script's positional arguments. `found`: the words
    of the command."""
    script = next((i for i, word in enumerate(found) if word.endswith(".py")), -1)
    tokens = _TOKEN.findall(command)[: len(found)]
    if script < 0 or [words(token) for token in tokens] != [[word] for word in found]:
        return None
    tokens, found, last = _by_bash_last(tokens, found, script + 1)
    if (last and "--" in found) or any(_EXPANDED.search(word) for word in found[script + 1 :]):
        return None
    if set_first := [*itertools.takewhile(ASSIGNED.fullmatch, found)]:  # `exec` takes no variables
        tokens, found = ["env", *tokens], ["env", *found]
    expanded = {i for i, word in enumerate(found) if _EXPANDED.search(word)}
    if expanded and min(expanded) <= len(set_first):
        return None
    # a flag goes with its value, since the words are read without the text
    expanded |= {i - 1 for i in expanded if i and re.fullmatch(r"-[\w-]+", found[i - 1])}
    parts, kept = ["exec"], list[str]()
    for by_bash, places in itertools.groupby(range(max(expanded, default=-1) + 1), expanded.__contains__):
        group = [*places]
        parts += [tokens[i] for i in group] if by_bash else [f'"${{@:{len(kept) + 1}:{len(group)}}}"']
        kept += [] if by_bash else [found[i] for i in group]
    rest = f'"${{@:{len(kept) + 1}}}"' if kept else '"$@"'
    return " ".join([*parts, rest, *last]), [*kept, *found[max(expanded, default=-1) + 1 :]]


def _by_bash_last(tokens: list[str], found: list[str], begins: int) -> tuple[list[str], list[str], list[str]]:
    """Returns (tokens, words, tokens of the flags with a value that bash expands, which the former two lack). Only
    flags from the index `begins` on are moved."""
    flags = [i for i in range(begins, len(found)) if found[i].startswith("-")]
    runs = [range(at, end) for at, end in itertools.pairwise([*flags, len(found)])]
    moved = [i for run in runs if any(_EXPANDED.search(found[i]) for i in run) for i in run]
    kept = [i for i in range(len(found)) if i not in moved]
    return [tokens[i] for i in kept], [found[i] for i in kept], [tokens[i] for i in moved]


def passed_on(text: str) -> str:
    """Returns the text of a `bash -c` of `unwrapped` for other words than those of the line, such as a different
    launcher's."""
    return _BY_POSITION.sub('exec "$@"', text)
