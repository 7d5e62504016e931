"""Recognises secrets (keys, tokens, passwords) by the rules of secret_rules.toml, and replaces them.

Everything that is written, shown or shared contains `‹secret›` instead of a secret; only the running process has its
value. A secret is recognised by its form (`hf_…`), its name (`--api-key V`, `DB_PASSWORD=V`, `"token": "V"`) or its
position (`user:V@host`).
"""

import math
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

HIDDEN = "‹secret›"
_RULES = tomllib.loads(Path(__file__).with_name("secret_rules.toml").read_text(encoding="utf-8"))
_NAMED, _MAYBE, _ABOUT = (frozenset(_RULES[key]) for key in ("named", "maybe", "about"))
_TOGETHER = frozenset(tuple(pair.split()) for pair in _RULES["named_together"])
_FORMS = re.compile("(?<![A-Za-z0-9])(?:" + "|".join(form["pattern"] for form in _RULES["form"]) + ")")
_HARMLESS = frozenset(tuple(pair.split()) for pair in _RULES["harmless_together"])
_PEM = re.compile(
    r"(-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----).*?(-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)", re.DOTALL
)
_SECRET_WORDS = "|".join(sorted({*_NAMED, *_MAYBE, *(b for _, b in _TOGETHER)}, key=len, reverse=True))
_QUOTE = r"\\*[\"']"
_NAME = re.compile(  # the name of a possible secret, and the text between it and the value
    rf"(?P<name>(?<![\w.-])[\w.-]{{0,60}}?(?:{_SECRET_WORDS})[\w.-]{{0,40}})"
    rf"(?P<lead>(?:{_QUOTE}\]?)?\s{{0,3}}(?:=>|:=|=|:)[ \t]*(?:&\w+[ \t]+|[|>][-+\d]{{0,2}}[ \t]*\n[ \t]+)?"
    rf"|(?:{_QUOTE}),?[ \t\n]+(?={_QUOTE})"
    rf"|(?:{_QUOTE})?[ \t]*\n[ \t]*-[ \t]+|[ \t]+)"
    rf"(?P<scheme>(?:{_QUOTE})?(?:bearer|basic|token|digest)[ \t]+)?",
    re.IGNORECASE,
)
_FIELDS = re.compile(  # a name in one field and its value in the next, such as environment variables in Kubernetes
    rf"\b(?:name|key)(?:{_QUOTE})?[ \t]*[:=][ \t]*(?:{_QUOTE})?(?P<name>[\w.-]+)(?:{_QUOTE})?,?\s+"
    rf"(?:{_QUOTE})?value(?:{_QUOTE})?[ \t]*(?P<lead>[:=])[ \t]*(?P<scheme>)",
    re.IGNORECASE,
)
_GIVEN = "|".join(rf"(?:{program})\b[^|;&\n]{{0,300}}?\s{before}" for program, before in _RULES["given"])
_PLACES = (
    re.compile(r"(\b\w{1,40}://[^\s/:@\"']*:)(?!\d{1,5}/)([^\s\"']{1,300})(?=@[\w-])"),  # user:password in a URL
    re.compile(r"(\b\w{1,40}://)([A-Za-z0-9_.~%-]{16,})(?=@)"),
    re.compile(
        r"((?<![\w./:@-])[\w.%+-]+:)([^\s:/@\"'=,]{3,})(?=@[\w-]+(?:\.[\w-]+)*(?::\d+)?(?![\w:]))"
    ),  # user:password in an address without a scheme
    re.compile(r"((?:-u|-U|--user|--proxy-user|--creds|--auth)[\s=][\"']?[\w.@%+-]+:)([^\s\"']+)"),
    re.compile(r"(\blogin\s+(?:-\S+\s+)*)([A-Za-z0-9_-]{20,})"),
    re.compile(r"(\blogin\s+\S+\s+password\s+)(\S+)"),  # .netrc
    re.compile(r"((?<![\w.-])(?:[\w-]+\.[\w.-]+|localhost|\*):(?:\d{4,5}|\*):[\w*-]+:[\w*-]+:)([^\s:\"']+)"),  # .pgpass
    re.compile(rf"(\b(?:{_GIVEN})[\"']?)([^\s\"']+)"),
    re.compile(r"(:thin:[\w.]+/)([^\s@\"']+)(?=@)"),  # in connection strings of Oracle
    re.compile(
        r"(\becho\s+(?:-n\s+)?[\"']?)([^\s\"'|]{3,})(?=[\"']?\s*\|\s*(?:sudo\s[^|\n]*-S\b|[^|\n]*--\S+-stdin\b))"
    ),
    re.compile(r"(--\S+-stdin\b[^|;&\n<]{0,300}<<<\s*[\"']?)([^\s\"']+)"),
    re.compile(r"([?&]code=)([\w.%~+/-]{30,}=*)"),  # in URLs of Azure's functions
    re.compile(r"(/t/)((?:[a-z]{2}-)?[0-9a-f-]{32,40})(?=/)"),  # in URLs of conda's channels
    re.compile(r"(\bpass(?:word|phrase)\s+for\s+[\"']?[^\s\"']+[\"']?:\s*)(\S+)", re.IGNORECASE),  # in prompts of git
    re.compile(r"(\bcookie:\s*)([^\s\"'][^\n\"']*)", re.IGNORECASE),
    re.compile(r"(<\w*(?:password|secret|token|api_?key)>)([^<\s]+)(?=</)", re.IGNORECASE),
    re.compile(r"(\b(?:[Bb]earer|[Bb]asic)\s+)([A-Za-z0-9_.~+/=-]{8,})"),
)
# A prefix and a random string: keys of vendors that secret_rules.toml does not list.
_MARKED = re.compile(
    r"(?<![A-Za-z0-9/+_.-])[A-Za-z][A-Za-z0-9]{1,10}[_-](?:[A-Za-z0-9]{1,4}[_-])?([A-Za-z0-9_-]{28,400})"
)
_BETWEEN = "\x1f"  # separator of words, since patterns treat it as white space and no word contains it
_SCHEME_OF_DIGEST = re.compile(r"@(?:sha256|sha512|md5)\b")
_LONG = re.compile(r"(?<![A-Za-z0-9/+_=.-])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+_=-])")  # the form of AWS's secret keys
_PLAIN = re.compile(
    r"[\d.,_:-]*|true|false|none|null|nil|auto|yes|no|on|off|default|required|optional|str|int|bool|string|<[^>]*>|\[\w*\]"
    r"|\*+|\.{3,}|x{3,}|your\W.*",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"%(?![0-9A-F]{2})")  # a variable of Windows or a format specifier, but not %2F in a URL
_PATH = re.compile(r"(?:\.{0,2}|~)/[\w./~-]+")
_ENDS = tuple(_NAMED)  # endings of names, as in PGPASSWORD
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@cache
def _strength(name: str) -> int:
    """2 if a value with this name is always a secret, 1 if it is one only if it looks random, 0 if it never is."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT or words[-1] in ("tokens", "keys") or tuple(words[-2:]) in _HARMLESS:
        return 0
    if words == ["token"] or any(word.endswith(_ENDS) for word in words) or not _TOGETHER.isdisjoint(pairwise(words)):
        return 2
    return 1 if words[-1] in _MAYBE else 0


def _random(value: str) -> bool:
    """Whether a value looks random: long, of mixed characters, and not made of words."""
    if len(value) < 8 or not re.search(r"[A-Za-z]", value):
        return False
    if not re.search(r"\d", value) and len(re.findall(r"[a-z][A-Z]|[A-Z]{2}[a-z]", value)) < 3:
        return False
    parts = re.split(r"[-_./:]", value)
    if len(parts) > 1 and all(re.fullmatch(r"[A-Za-z]+\d{0,4}|\d+[A-Za-z]?", part) for part in parts):
        return False  # it consists of words and numbers, such as block_16 or llama-3.1-8b
    return len(set(value)) >= 6


def is_one(name: str, value: str) -> bool:
    """Whether a value with this name is a secret or contains one."""
    if redacted(value) != value:
        return True
    strength = _strength(name.lstrip("-+"))
    return strength > 0 and _counts(value, strength)


def _counts(value: str, strength: int) -> bool:
    if strength == 2 and re.fullmatch(r"\d{6,}", value):
        return True
    if (
        HIDDEN in value
        or _VARIABLE.match(value)
        or _PLAIN.fullmatch(value)
        or value.startswith(("$", "{", "‹", "os.environ"))
    ):
        return False
    return _random(value) or (strength == 2 and not _PATH.fullmatch(value))


def redacted(text: str) -> str:
    """The text with each secret replaced by `‹secret›`, and otherwise unchanged."""
    if len(text) < 4:
        return text
    text = _by_name(text, _FIELDS)
    text = _by_name(text, _NAME)
    for place in _PLACES:
        text = place.sub(lambda found: found[0] if _no_secret(found) else f"{found[1]}{HIDDEN}", text)
    text = _FORMS.sub(HIDDEN, text)
    text = _MARKED.sub(lambda found: HIDDEN if _changing(found[1]) else found[0], text)
    text = _LONG.sub(lambda found: HIDDEN if _drawn(found[0]) else found[0], text)
    return _PEM.sub(lambda found: f"{found[1]}{HIDDEN}{found[2]}", text) if "PRIVATE KEY" in text else text


def _no_secret(found: re.Match[str]) -> bool:
    value = found[2]
    if found[1].startswith("-") and (value.isdigit() or re.search(rf"[ =]{re.escape(value)}:$", found[1])):
        return True  # user:group of a container, not user:password
    digest = _SCHEME_OF_DIGEST.match(found.string, found.end())
    return (
        bool(digest)
        or HIDDEN in value
        or value[:1] in ("$", "{", "<")
        or _VARIABLE.match(value) is not None
        or value.strip("*x.") == ""
    )


def _by_name(text: str, names: re.Pattern[str]) -> str:
    done, position, pieces = 0, 0, []
    while found := names.search(text, position):
        position = found.end("name")
        start, end = _value(text, found.end(), text[max(0, found.start() - 1) : found.start()] in ("?", "&", ";"))
        name, lead, value = found["name"], found["lead"], text[start:end]
        before = re.search(r"\w{1,20} $", text[max(0, found.start() - 21) : found.start()])
        strength = _strength((before[0] if before and name.isalpha() else "") + name.lstrip("-+."))
        if not re.search("[:=]", lead):  # name and value are separate words, such as a flag and its value
            if name.startswith("-"):
                strength = 0 if value.startswith("-") else strength
            else:
                strength = 2 if strength == 2 and len(value) >= 20 and _random(value) else 0
        elif ":" in lead and start == found.end() and _prose(text, start, end):
            strength = 0
        if strength and (_counts(value, strength) or (found["scheme"] and len(value) >= 4 and _counts(value, 2))):
            pieces += [text[done:start], HIDDEN]
            done = position = end
    return "".join([*pieces, text[done:]]) if pieces else text


def _prose(text: str, start: int, end: int) -> bool:
    """Whether a value is part of a sentence such as "Invalid token: unexpected end", not of YAML or a header."""
    word = re.fullmatch(r"[A-Za-z][a-z]*[.,;]?", text[start:end])
    return bool(word) and bool(re.match(r"[,;]?[ \t]+\w", text[end : end + 9]))


def _value(text: str, start: int, in_query: bool) -> tuple[int, int]:
    """(start, end) of the value at `start`, without quotes."""
    if quote := re.compile(r"\\*[\"']").match(text, start):
        end = text.find(quote[0], quote.end())
        return quote.end(), end if end >= 0 else len(text)
    run = re.compile(r"[^\s\"'\\]*").match(text, start)
    assert run
    end = run.end()
    stop = re.compile(r"[&#]" if in_query else r",(?=[\w.-]+[=:])").search(text, start, end)
    end = stop.start() if stop else end
    while end > start and text[end - 1] in ",;)}]>`":
        end -= 1
    return start, end


def _drawn(value: str) -> bool:
    """Whether 40 base64 characters look random, unlike a path, a word or a hexadecimal number."""
    if not (re.search(r"[A-Z]", value) and re.search(r"[a-z]", value) and re.search(r"\d", value)):
        return False
    bits = -sum(n / 40 * math.log2(n / 40) for n in Counter(value).values())
    return bits > 4.2 and value.count("/") <= 4


def _changing(value: str) -> bool:
    """Whether upper case, lower case and digits alternate as often as in a random string, in which 62 % of the
    characters differ in kind from the previous one; in CamelCase words at most a third do."""
    kinds = ["digit" if c.isdigit() else "upper" if c.isupper() else "lower" for c in value if c.isalnum()]
    changes = sum(a != b for a, b in pairwise(kinds))
    return len(set(kinds)) == 3 and changes > 0.4 * len(kinds)


def words(found: Sequence[str]) -> list[str]:
    """The words of a command with secrets replaced. A secret may be a word of its own, after a flag; for some flags
    this depends on the program."""
    kept: list[str] = []
    flag = ""
    whole = redacted(_BETWEEN.join(found)).split(_BETWEEN)
    for word in whole if len(whole) == len(found) else found:
        kept.append(HIDDEN if flag and not word.startswith("-") and is_one(flag, word) else redacted(word))
        flag = word if word.startswith("-") and "=" not in word and HIDDEN not in word else ""
    return kept


def without(value: Any, name: str = "") -> Any:
    """Plain data (dicts, lists, strings, numbers) with secrets replaced; `name`: its key if it is a value of a dict."""
    if isinstance(value, str):
        strength = _strength(name) if name else 0
        return HIDDEN if strength and _counts(value, strength) else redacted(value)
    if isinstance(value, dict):
        return {key: without(each, str(key)) for key, each in value.items()}
    if isinstance(value, list):
        return words(value) if value and all(isinstance(each, str) for each in value) else [without(v) for v in value]
    return value
