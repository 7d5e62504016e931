"""Suggests a command to try after an error: the user's command line with a mistyped word replaced by the nearest
existing name, or the command that the error message names, with the user's job file."""

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

_MEANT = re.compile(r"'([^']+)'[^']*[;.] [Dd]id you mean '([^']+)'")
_CHOICES = re.compile(r"'([^']+)' is not one of (.*)", re.DOTALL)
_NEAREST = re.compile(r"; the nearest valid one is (\S+)$")
_NAMED = re.compile(r"`autoscout ([a-z]+)`")
_TAKEN = re.compile(r"^(\S+) exists(?: already)?; choose another name")
_KNOB = re.compile(r"[A-Za-z_]\w*=")


class FailedCommand(NamedTuple):
    """A command line that failed. `sentence`: its error message; `words`: its words after the program's name;
    `sessions`: the names of existing sessions."""

    sentence: str
    words: Sequence[str]
    verbs: Mapping[str, click.Command]
    code: int = 2
    sessions: Sequence[str] = ()

    def takes(self, verb: str, what: str) -> bool:
        """Whether the verb has an argument that its help calls `what`, such as JOB.toml."""
        known = self.verbs.get(verb)
        return known is not None and any(
            what in (p.metavar or "") for p in known.params if isinstance(p, click.Argument)
        )

    def job(self) -> str:
        """The job file or shipped job that the command line names; "" if it names none that exists."""
        from autoscout.job import shipped

        named = shipped.jobs()
        return next((w for w in self.words[1:] if (w.endswith(".toml") and Path(w).is_file()) or w in named), "")


def next_step(failed: FailedCommand) -> str:
    """The words after `autoscout` of a command that may work; "" if none is known."""
    if not failed.words:
        return ""
    steps = (_spelled, _valid, _new_name, _file, _session, _named, _listed, _checked)
    step = next((step for each in steps if (step := each(failed))), [])
    kb = failed.words.index("--kb") if "--kb" in failed.words else None
    if step and kb is not None and "--kb" not in step and "--" not in step:
        step = [*step, *failed.words[kb : kb + 2]]
    return shlex.join(step)


def _spelled(failed: FailedCommand) -> list[str]:
    """The same command with the intended name in place of a mistyped one."""
    if found := _MEANT.search(failed.sentence):
        return _instead(failed.words, found[1], found[2])
    if found := _CHOICES.search(failed.sentence):
        return _instead(failed.words, found[1], _near(found[1], re.findall(r"[\w.-]+", found[2])))
    return []


def _valid(failed: FailedCommand) -> list[str]:
    """The same command with the nearest valid configuration in place of the invalid one."""
    found = _NEAREST.search(failed.sentence)
    if not found or not any(map(_KNOB.match, failed.words)) or failed.words.count("--config") > 1:
        return []
    knobs = [i for i, word in enumerate(failed.words) if _KNOB.match(word)]
    return [found[1] if i == knobs[0] else word for i, word in enumerate(failed.words) if i not in knobs[1:]]


def _new_name(failed: FailedCommand) -> list[str]:
    found = _TAKEN.search(failed.sentence)
    if not found:
        return []
    taken = Path(found[1])
    free = (taken.with_stem(f"{taken.stem}-{i}") for i in range(2, 100))
    return _instead(failed.words, found[1], next((str(each) for each in free if not each.exists()), ""))


def _file(failed: FailedCommand) -> list[str]:
    """The same command with the name of the nearest existing file; if no job file is near, the command `init`."""
    from autoscout.job import shipped

    for word in failed.words[1:]:
        path = Path(word)
        missing = f"{word}:" in failed.sentence or re.search(rf"{re.escape(word)}'? is neither", failed.sentence)
        if not missing or path.exists():
            continue
        job = path.suffix == ".toml" or "nor a job" in failed.sentence
        ending = ".toml" if job else path.suffix
        if not ending:
            continue
        here = [str(each) for each in path.parent.glob(f"*{ending}") if each.is_file()]
        named = {Path(each).name.removesuffix(ending): each for each in here}
        named |= {each: each for each in (shipped.jobs() if job else ())}
        if near := named.get(_near(path.name.removesuffix(ending), named)):
            return _instead(failed.words, word, near)
        if job:
            return ["init", "--out", word if word.endswith(ending) else f"{word}{ending}", "--", "YOUR LAUNCH LINE"]
    return []


def _session(failed: FailedCommand) -> list[str]:
    """The same command with the nearest session; if there are no sessions, the command `demo`, which shows a recorded
    one."""
    unknown = re.search(r"there (?:is no session (\S+)|are no sessions) ", failed.sentence)
    if unknown and not failed.sessions:
        return ["demo"]
    name = (unknown[1] or "") if unknown else ""
    return _instead(failed.words, name, _near(name, failed.sessions)) if name else []


def _named(failed: FailedCommand) -> list[str]:
    """The command that the error message names, with the user's job and knobs."""
    job, knobs = failed.job(), [word for word in failed.words if _KNOB.match(word)]
    for verb in _NAMED.findall(failed.sentence):
        if job and failed.takes(verb, "JOB.toml"):
            return [verb, job, *(knobs if failed.takes(verb, "KNOB=VALUE") else ())]
    return []


def _listed(failed: FailedCommand) -> list[str]:
    """The command `space`, which explains the valid names, after an error about an unknown name."""
    job = failed.job() if " is unknown; known: " in failed.sentence and failed.words[0] != "space" else ""
    # `space` would only repeat an error in the job file itself, such as an unknown kind of device.
    return ["space", job] if job and not failed.sentence.startswith(f"{job}: ") else []


def _checked(failed: FailedCommand) -> list[str]:
    """The command `check`, which looks for the reason why a run failed."""
    ran = failed.code != 2 and failed.words[0] in ("tune", "profile") and "autoscout" not in failed.sentence
    job = failed.job() if ran else ""
    return ["check", job] if job else []


def _near(word: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), "")


def _instead(command: Sequence[str], wrong: str, right: str) -> list[str]:
    """The command with `wrong` replaced by `right`, as a whole word or before "="; [] if it does not occur."""
    changed = [re.sub(rf"^{re.escape(wrong)}(?==|$)", lambda _: right, word) for word in command]
    return changed if right and changed != list(command) else []
