"""The journal: one append-only file of typed events, the only source of truth of a session.

Each line is a JSON object with the event's `type` and `at` (unix seconds). Events are written before the session acts
on them, and results are on disk (fsync) before the next decision, so a kill loses at most the line being written. An
incomplete last line is cut off when the file is next opened for writing. The knowledge base is filled from journals,
screens show them, and a session is resumed from its journal."""

import errno
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from kb import door, older, seals, secrets
from kb.end_events import Confirmed, Gated, SearchEnded, SessionEnded, WarmStartWorth
from kb.records import AutoscoutError, Configuration, Fidelity, Job, Measurement, Value
from kb.within_events import Event, ValueBelief, WarmSource

PROPOSED = "PROPOSED"  # name of the bandit arm for users' proposals


class SessionStarted(Event, frozen=True, tag="session_started"):
    """`records`: format version of this journal (kb/records.py); `fidelity`: the option of the session (`adaptive`,
    `profile` or `simulate`), not the fidelity of its measurements; `strategy`: of the search, or `profile` for a single
    experiment."""

    session: str
    job: Job
    context: str
    strategy: str
    seed: int
    fidelity: str
    warm_start: str
    hyper: dict[str, Value]
    environment: dict[str, str]
    kb_mark: int  # the KB's last row at the start; later rows of other sessions are not used, even after a resume
    default: Configuration
    orderings: list[list[str]]
    host: str = ""  # "": unknown, or not recorded for privacy
    records: int = 0
    recipes: list[Configuration] = []  # further expert recipes, which are measured right after the default


class SessionResumed(Event, frozen=True, tag="session_resumed"):
    """`records`: as in SessionStarted, since a later AutoScout may resume the session; `wall`: a new wall-clock limit;
    with one, the final rounds continue even after a verdict."""

    pid: int
    records: int = 0
    wall: str = ""


class Decided(Event, frozen=True, tag="decided"):
    """A decision of the strategy: which bandit arm proposes which configurations, and why. `values`: inputs of the
    decision, if any: ucb_ARM (each arm's UCB index), gain_ARM (expected gain of each arm's proposal, as a share of the
    cost), predicted_gain (of the chosen proposal), uncertainty (standard deviation of its log-cost).

    Phases:
        default     the expert default, with which every strategy begins
        opening     autoscout: a few experiments, far apart or chosen by the simulators, before the surrogate is used
        tournament  paper: there is one tree for each ordering of the sparse knobs, and the trees propose in turn
        search      the search itself
        repeat      autoscout, only in older journals: the best configurations are measured again at the end

    Arms:
        DEFAULT     autoscout and paper: the expert default
        MODEL       autoscout: the candidate with the largest expected gain; also the proposals of the opening
        SPARSE      autoscout and paper: a path through a tree that branches by the sparse knobs
        DENSE       autoscout and paper: a step of one dense knob at a time
        PROPOSED    autoscout: what a person, an agent or a script proposed
        RANDOM …    other strategies: the strategy's name in capitals, in the phases default and search
    """

    step: int
    phase: str
    arm: str
    configurations: list[Configuration]
    names: list[str]
    why: str
    values: dict[str, float] = {}
    coordinates: dict[str, list[int]] = {}  # dense optimizer: knob → [direction, step]; the first knob is changed next


class Rewarded(Event, frozen=True, tag="rewarded"):
    """A finished 2×2 grid of {base, candidate} structure (sparse knobs) × {base, candidate} point (dense knobs).
    `costs`: of bb, bc, cb, cc (first the structure, then the point; b: base, c: candidate; None: failed or unknown).
    `errors`: standard deviation of the log of each predicted cost, 0 for measured costs; empty if all were measured."""

    step: int
    costs: list[float | None]
    delta_sparse: float
    delta_dense: float
    interaction: float | None
    arms: dict[str, list[float]]  # arm → [pulls, mean reward]
    errors: list[float] = []


class TournamentRanked(Event, frozen=True, tag="tournament_ranked"):
    round: int
    orderings: list[list[str]]
    rewards: list[float]
    kept: list[int]


class ExperimentStarted(Event, frozen=True, tag="experiment_started"):
    """`number` counts the session's experiments from 1. Purposes:
        search      for the strategy or an order of a user; counts towards the budget
        check       the predicted best of a simulated batch, to check the simulators; counts towards the budget
        anchor      the reference (the expert default) again, not counted, to measure the machine's drift
        repeat      repetition of a run that other load disturbed, not counted
        confirm     finalists and reference in the final rounds, not counted
        profile     a single experiment (`autoscout profile`)

    Rows of the knowledge base also have the purposes `answered` (from another session) and `import`. `placement`: hosts
    and devices in rank order, as "node1:0,1 node2:0"; "" for this machine's first devices.
    """

    number: int
    purpose: str
    configuration: Configuration
    name: str
    folder: str  # relative to the journal's folder
    placement: str = ""


class ExperimentEnded(Event, frozen=True, tag="experiment_ended"):
    """Fields as in ExperimentStarted; `placement`: the hosts and devices on which the experiment really ran."""

    number: int
    purpose: str
    measurement: Measurement
    placement: str = ""


def charged(measurement: Measurement) -> bool:
    """Whether a search experiment counts towards the budget; machine faults and shadow runs' forecasts do not."""
    return measurement.status != "infrastructure" and measurement.fidelity != "shadow"


class Waiting(Event, frozen=True, tag="waiting"):
    """The next experiment waits for devices that the session `holder` uses; `over`: the wait has ended."""

    holder: str = ""  # the name of a session
    pid: int = 0
    over: bool = False


class Passed(Event, frozen=True, tag="passed"):
    """The strategy was asked for more experiments, because the queued ones wait for other kinds of device."""


class Neighbours(Event, frozen=True, tag="neighbours"):
    """Whether experiments may share a host (`allowed`). `alone`: cost of the reference run when nothing else runs on
    the host; `beside`: costs of as many such runs as fit on the host at the same time; `shape`: devices of an
    experiment and of the host; `known_from`: the earlier session that measured these costs, "" if this session did."""

    shape: str
    alone: float
    beside: list[float]
    allowed: bool
    known_from: str = ""


class Answered(Event, frozen=True, tag="answered"):
    """A configuration that was not run, because the KB has a measurement with the same job, hardware and versions."""

    measurement: Measurement
    measured_by: str  # the session that measured it


class Simulated(Event, frozen=True, tag="simulated"):
    """A configuration that was not run, because the simulators predicted it."""

    configuration: Configuration
    name: str
    predicted: float  # the objective's metric
    members: dict[str, float]
    why: str = ""  # why the simulators are trusted for this configuration


class Checked(Event, frozen=True, tag="checked"):
    """A check of the simulators by a measurement. `mape`: mean absolute percentage error of the most recent checks."""

    step: int
    name: str
    predicted: float
    measured: float | None
    mape: float
    epsilon: float
    weights: dict[str, float]
    members: dict[str, float] = {}  # simulator → its prediction


class FidelitySwitched(Event, frozen=True, tag="fidelity_switched"):
    """From this event on, the strategy's requests get measurements of the fidelity `to`, which is always `measured`."""

    step: int
    to: Fidelity
    why: str


class Steered(Event, frozen=True, tag="steered"):
    """An order (kb/orders.py) that took effect, or was refused. `refused`: the reason for refusing it, "" if it took
    effect; `why`: its author's reason for giving it."""

    what: str
    values: dict[str, Value]
    by: str
    refused: str = ""
    why: str = ""


class BestFound(Event, frozen=True, tag="best_found"):
    configuration: Configuration
    name: str
    value: float
    experiments: int


class Outlook(Event, frozen=True, tag="outlook"):
    """The probability that an unmeasured configuration is at least 1 % better than the best one (`chance`), and the
    expected gain of `ahead` more experiments."""

    step: int
    chance: float
    gain: float
    ahead: int


class Believed(Event, frozen=True, tag="believed"):
    """The search's beliefs about each knob's values before the decision of `step`."""

    step: int
    knobs: dict[str, list[ValueBelief]]


class WarmStarted(Event, frozen=True, tag="warm_started"):
    """The knowledge that a warm start carried over. `favourites`: the best configurations of similar jobs, each
    replaced by the nearest valid configuration if it is invalid for this job."""

    sources: list[WarmSource] = []
    favourites: list[Configuration] = []
    notes: list[str] = []


class Later(Event, frozen=True, tag="later"):
    """An event of a type that only later versions of AutoScout know. It is shown and stored unchanged."""

    kind: str
    body: dict[str, Any] = {}


AnyEvent = (
    SessionStarted
    | SessionResumed
    | Decided
    | Rewarded
    | TournamentRanked
    | ExperimentStarted
    | ExperimentEnded
    | Waiting
    | Passed
    | Neighbours
    | Answered
    | Simulated
    | Checked
    | FidelitySwitched
    | Steered
    | BestFound
    | SearchEnded
    | Confirmed
    | Gated
    | Outlook
    | Believed
    | WarmStarted
    | WarmStartWorth
    | SessionEnded
    | Later
)

_decoder = msgspec.json.Decoder(AnyEvent)
_KINDS = {kind.__struct_config__.tag for kind in typing.get_args(AnyEvent)}


class Journal:
    """Appends events to one file. Opening it cuts off an incomplete last line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = open(path, "ab+", buffering=0)  # noqa: SIM115 - held for the session
        except OSError as error:
            raise _cannot_write(path, error) from error
        self._cut_torn_line()

    def append(self, *events: Event, sync: bool = True) -> None:
        """Writes one line per event. `sync`: whether to wait until they are on disk; otherwise a power failure (but not
        a kill) may lose them. Errors: AutoscoutError if they cannot be written; in this case, no event is written."""
        if not self.path.exists():
            raise AutoscoutError(
                f"{self.path} was removed or moved during the session, so measurements cannot be saved; "
                f"start the job again"
            )
        start = self._file.seek(0, os.SEEK_END)
        try:
            seal, lines = self._seal, b""
            for event in events:
                line, seal = seals.sealed(msgspec.json.encode(_kept(event)), seal)
                lines += line + b"\n"
            written = 0
            while written < len(lines):
                written += self._file.write(lines[written:])
            if sync:
                os.fsync(self._file.fileno())
            self._seal = seal
        except OSError as error:
            self._file.truncate(start)
            raise _cannot_write(self.path, error) from error

    def close(self) -> None:
        self._file.close()

    def _cut_torn_line(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            self._file.truncate(whole)
        self._seal = seals.after(content[: max(0, whole - 1)].rpartition(b"\n")[2])


def read(
    path: Path, offset: int = 0, plain: bool = False, damaged: list[AutoscoutError] | None = None
) -> Iterator[tuple[AnyEvent, int]]:
    """Yields (event, offset after its line), and stops before an incomplete last line. `plain`: whether to remove
    control characters; `damaged`: a list that collects an error for each line that is not an event; without it, the
    first such error is raised.

    Errors: AutoscoutError (exit 2) if there is no such file, (exit 1) if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                try:
                    event = _decode(door.plain_json(line) if plain else line)
                except (ValueError, RecursionError) as error:
                    if damaged is None:
                        raise older.damaged(path, offset, error) from error
                    damaged.append(damaged[0] if damaged else older.damaged(path, offset, error))
                    continue
                yield event, offset
    except FileNotFoundError as error:
        raise AutoscoutError(f"{path}: no such journal; `autoscout sessions` lists them", 2) from error
    except OSError as error:
        raise AutoscoutError(f"{path}: cannot read the journal ({error.strerror})") from error


def _decode(line: bytes) -> AnyEvent:
    """Parses a line. Errors: msgspec.DecodeError, or its subclass ValidationError."""
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(line)
        if not isinstance(fields, dict):
            raise
        if isinstance(kind := fields.get("type"), str) and kind not in _KINDS:
            at = fields.get("at")
            fields.pop("seal", None)
            return Later(kind=kind, body=fields, at=at if isinstance(at, int | float) else 0.0)
        return msgspec.convert(older.event(fields), AnyEvent)


def events(path: Path, plain: bool = False) -> list[AnyEvent]:
    return [event for event, _ in read(path, plain=plain)]


def _kept(event: Event) -> Event:
    """The event with secrets removed from all its texts (in jobs, output of programs, users' reasons)."""
    said = msgspec.to_builtins(event)
    kept = secrets.without(said)
    return event if kept == said else msgspec.convert(kept, type(event))


def _cannot_write(path: Path, error: OSError) -> AutoscoutError:
    if error.errno == errno.ENOSPC:
        return AutoscoutError(
            f"{path}: the disk is full; finished experiments are kept; free some space, then run the same "
            f"command with --resume"
        )
    return AutoscoutError(
        f"{path}: cannot write the journal ({error.strerror}); choose a file in another folder with --kb"
    )
