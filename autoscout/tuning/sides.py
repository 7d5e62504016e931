"""The sides that a gate or a bisection compares: versions of a job, each defined by a text such as

JOB.toml, SESSION            the reference of a job file, the winner of a session
python=/venv/bin/python      another interpreter
commit=v1.2                  the script's repository at another commit, in a checkout of its own
torch==2.13.0                another version of a package, in an environment of its own
prefix="docker exec box"     another container
file=a.yaml:b.yaml           the second settings file in place of the first one in the job's launch command
tp=2 mbs=4, tp2_mbs4         another configuration
"""

import contextlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from autoscout.job import shipped
from autoscout.running.interpreter import target_python
from autoscout.space.explain import completed, parse
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.session import with_secrets
from kb import journal as journals
from kb import store
from kb.records import AutoscoutError, Configuration, Job, LaunchSettings

_PIP_S = 1800.0
_PATHS = "import sysconfig; print(sysconfig.get_path('purelib')); print(sysconfig.get_path('platlib'))"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    job: Job
    configuration: Configuration


@contextlib.contextmanager
def side(text: str, base: Job | None, kb: Path, wheels: str = "") -> Iterator[Side]:
    """Creates a side from its text. `base`: the job that the text changes; `wheels`: a folder of wheels, from which
    packages are then installed instead of the package index. The side's files are removed on exit. Errors:
    AutoscoutError (exit 2) if the text does not define a side."""
    if text.endswith(".toml") or text in shipped.jobs():
        job = load_job(text)
        yield Side(label=text, job=job, configuration=JobSpace.of_job(job).reference)
    elif base is None:
        yield of_session(kb, text)[1]
    else:
        with contextlib.ExitStack() as made:
            yield _changed(text, base, made, wheels)


def of_session(kb: Path, session: str, given: Job | None = None) -> tuple[Side, Side]:
    """A session's reference and its winner. `given`: the user's job file, with the secrets that no journal stores.
    Errors: AutoscoutError (exit 2) if there is no such session, or it has no winner."""
    try:
        events = journals.events(store.journalled(kb, session) / "journal.jsonl")
    except AutoscoutError as error:
        forms = "a job file, a session, or a change of the job file in --job (python=…, commit=…, KNOB=VALUE)"
        raise AutoscoutError(f"{error}; a side is {forms}", 2) from error
    started, confirmed = ended_with(events, session)
    job = with_secrets(started.job, given)
    reference = Side(label=f"the reference of {session}", job=job, configuration=started.default)
    return reference, Side(label=session, job=job, configuration=confirmed.winner)


def ended_with(events: list[journals.AnyEvent], session: str) -> tuple[journals.SessionStarted, journals.Confirmed]:
    """A session's first event and its verdict. Errors: AutoscoutError (exit 2) if it has no verdict."""
    found = [e for e in events if isinstance(e, journals.Confirmed)]
    if not found or not isinstance(started := events[0], journals.SessionStarted):
        raise AutoscoutError(f"session {session} has no winner; `autoscout tune --resume {session}` finishes it", 2)
    return started, found[-1]


def _changed(text: str, job: Job, made: contextlib.ExitStack, wheels: str) -> Side:
    assignments: list[str] = []
    for word in shlex.split(text):
        key, equals, value = word.partition("=")
        if equals and value.startswith("="):
            python = made.enter_context(_with_package(job, word, wheels))
            job = _launched(job, python=str(python), command_prefix=[])
        elif key == "commit":
            job = made.enter_context(_at_commit(job, value))
        elif key == "python":
            if not os.access(value, os.X_OK):
                raise AutoscoutError(f"python={value}: no Python interpreter can be started at this path", 2)
            job = _launched(job, python=os.path.abspath(value))
        elif key == "file":
            job = _with_file(job, *value.partition(":")[::2])
        elif key == "prefix":
            job = _launched(job, command_prefix=shlex.split(value))
        else:
            assignments.append(word)
    space = JobSpace.of_job(job)
    chosen = completed(space, parse(space, assignments), space.reference) if assignments else space.reference
    return Side(label=text or "unchanged", job=job, configuration=chosen)


def _with_file(job: Job, old: str, new: str) -> Job:
    """The job with `new` in place of the file `old` in its launch command. Errors: AutoscoutError (exit 2) if the
    command does not contain it."""
    where = Path(job.launch.path or ".").resolve()
    line = job.launch.command or job.launch.current
    names = [word for word in line.split() if (where / word).resolve() == Path(old).resolve()]
    if not (names and new):
        sentence = f"the launch line of {job.name} does not name this file; give a file that the line names"
        raise AutoscoutError(f"file={old}: {sentence}", 2)
    there = str(Path(new).resolve())
    moved = {name: getattr(job.launch, name).replace(names[0], there) for name in ("command", "current")}
    return _launched(job, **moved)


def _launched(job: Job, **changes: object) -> Job:
    launch: LaunchSettings = msgspec.structs.replace(job.launch, **changes)
    return msgspec.structs.replace(job, launch=launch)


@contextlib.contextmanager
def _at_commit(job: Job, commit: str) -> Iterator[Job]:
    """The job with its script in a checkout of a commit. Errors: AutoscoutError (exit 2) if there is no such commit."""
    where = Path(job.launch.path or ".").resolve()
    top = _git(where, "rev-parse", "--show-toplevel").strip()
    commit = _git(where, "rev-parse", "--verify", f"{commit}^{{commit}}").strip()
    with tempfile.TemporaryDirectory(prefix="autoscout-commit-") as folder:
        tree = os.path.join(folder, Path(top).name)
        _git(where, "worktree", "add", "--detach", "--quiet", tree, commit)
        try:
            moved = {
                name: getattr(job.launch, name).replace(top + os.sep, tree + os.sep) for name in ("command", "current")
            }
            yield _launched(job, path=os.path.join(tree, os.path.relpath(where, top)), **moved)
        finally:
            _git(where, "worktree", "remove", "--force", tree)


def commits(job: Job, good: str, bad: str) -> list[str]:
    """Commits from `good` to `bad`, both included, oldest first, along first parents."""
    where = Path(job.launch.path or ".").resolve()
    between = _git(where, "rev-list", "--first-parent", "--reverse", f"{good}..{bad}").split()
    if not between:
        raise AutoscoutError(f"{where}: {good} is not an ancestor of {bad}; pass the older commit first", 2)
    return [_git(where, "rev-parse", "--verify", f"{good}^{{commit}}").strip(), *between]


def commit_words(job: Job, commit: str) -> str:
    """A commit's short hash, date and first line."""
    where = Path(job.launch.path or ".").resolve()
    return _git(where, "show", "--no-patch", "--format=%h %cs %s", commit).strip()


def changed_files(job: Job) -> str:
    """A sentence on uncommitted changes in the script's repository, which no side contains; "" if there are none."""
    where = Path(job.launch.path or ".").resolve()
    found = _git(where, "status", "--porcelain", "--untracked-files=no").splitlines()
    files = "1 file" if len(found) == 1 else f"{len(found)} files"
    return f"{where}: neither side includes the uncommitted changes of {files}; commit them first" if found else ""


def _git(where: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(where), *words], capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise AutoscoutError(f"git cannot be run ({error.strerror}); install git to compare commits", 2) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise AutoscoutError(f"{where}: git {words[0]} fails ({lines[-1]}); launch.path must be the script's folder", 2)
    return done.stdout


@contextlib.contextmanager
def _with_package(job: Job, requirement: str, wheels: str) -> Iterator[Path]:
    """A virtual environment of the job's interpreter in which only one package has another version.

    Errors: AutoscoutError (exit 2) if it cannot be installed."""
    python = target_python(job)
    with tempfile.TemporaryDirectory(prefix="autoscout-package-") as folder:
        _run([*python, "-m", "venv", "--without-pip", folder], f"an environment of {python[-1]}")
        mine = Path(folder) / "bin" / "python"
        theirs = _run([*python, "-c", _PATHS], python[-1]).split("\n")
        site = Path(_run([str(mine), "-c", _PATHS], str(mine)).split("\n")[0])
        (site / "autoscout-parent.pth").write_text("\n".join(dict.fromkeys(theirs)) + "\n")
        source = ["--no-index", "--find-links", wheels] if wheels else []
        install = [str(mine), "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed", *source]
        _run([*install, "--disable-pip-version-check", "--target", str(site), requirement], requirement)
        yield mine


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PIP_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AutoscoutError(f"{what}: {error}", 2) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["nothing was printed"]
        lines = [line for line in lines if line.startswith("ERROR") and "ResolutionImpossible" not in line] or lines
        raise AutoscoutError(f"{what}: cannot be installed here ({lines[-1]}); --wheels names a folder of wheels", 2)
    return done.stdout.strip()
