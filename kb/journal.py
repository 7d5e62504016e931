"""The journal: one append-only file of typed events, the only source of truth of a session.

One JSON object per line, each with its `type` and `at` (unix seconds). Every line is written before anything acts on
it, and results wait until they are on disk (fsync), so a kill loses at most the line being written; a torn last line is
cut off when the file is next opened for writing. The knowledge base is filled from journals, screens draw them, and
resuming a session means reading its journal."""

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

PROPOSED = "PROPOSED"  # the arm of proposals


class SessionStarted(Event, frozen=True, tag="session_started"):
    """`records`: format version of this journal (kb/records.py). `fidelity`: what was asked for: `adaptive`, `profile`
    or `simulate`; each measurement states its own rung. `strategy`: that of the search, or `profile` for a single
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
    kb_mark: int  # rows in the KB at the start; this session learns from no later ones of others, even after a resume
    default: Configuration
    orderings: list[list[str]]
    host: str = ""  # "": unknown, or not to be disclosed
    records: int = 0
    recipes: list[Configuration] = []  # other starting points of experts, measured right after the default


class SessionResumed(Event, frozen=True, tag="session_resumed"):
    """`records`: as in SessionStarted, since a later AutoScout may resume it. `wall`: the session's limit from now on,
    if it got a new one; a verdict from before is then open again."""

    pid: int
    records: int = 0
    wall: str = ""


class Decided(Event, frozen=True, tag="decided"):
    """One ask: which arm proposes what, and why. `values`: the inputs of the decision, where there are any: ucb_ARM
    (each arm's index), gain_ARM (expected gain of each arm's proposal, as a share of the cost), predicted_gain (of the
    chosen one), uncertainty (of the log of the cost).

    Phases:
        default     the expert default, before anything else; every strategy begins with it
        opening     autoscout: few experiments, far apart or chosen by the simulators, before its surrogate has a say
        tournament  paper: each tree of an ordering proposes in turn
        search      the search itself
        repeat      autoscout, when it knows its budget: the front-runners again, at the end

    Arms:
        DEFAULT     autoscout and paper: the expert default
        MODEL       autoscout: the largest expected gain of all candidates, and all of opening and repeat
        SPARSE      autoscout and paper: the tree over structures
        DENSE       autoscout and paper: a coordinate step of the dense knobs
        PROPOSED    autoscout: what a person, an agent or a script proposed
        RANDOM …    any other strategy: its name in capitals, in both of its phases, default and search
    """

    step: int
    phase: str
    arm: str
    configurations: list[Configuration]
    names: list[str]
    why: str
    values: dict[str, float] = {}
    coordinates: dict[str, list[int]] = {}  # dense optimizer: knob → [direction, step], the active one first


class Rewarded(Event, frozen=True, tag="rewarded"):
    """One finished 2×2 grid: costs in the order bb, bc, cb, cc (None: failed), and what each arm earned. `errors`:
    standard deviation of the log of each predicted cost, 0 for measured ones; empty if all were measured."""

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
        search      requested by the strategy or a person: counts towards the budget
        check       the simulators' pick from a batch that they answered, to check them: counts, too
        anchor      the reference again, outside the budget, to see how the machine has drifted
        repeat      the same again, outside the budget: the machine was disturbed while it ran
        confirm     finalists and reference again, in rounds, outside the budget
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
    """Fields as in ExperimentStarted; `placement`: where it finally ran."""

    number: int
    purpose: str
    measurement: Measurement
    placement: str = ""


def charged(measurement: Measurement) -> bool:
    """Whether a search's experiment counts towards its budget: machine faults and shadows' forecasts do not."""
    return measurement.status != "infrastructure" and measurement.fidelity != "shadow"


class Waiting(Event, frozen=True, tag="waiting"):
    """The started experiment waits for devices that `holder` uses; `over`: it has got them."""

    holder: str = ""  # the name of a session
    pid: int = 0
    over: bool = False


class Passed(Event, frozen=True, tag="passed"):
    """The next experiments wait for devices that others use, so the strategy was asked for more."""


class Neighbours(Event, frozen=True, tag="neighbours"):
    """Whether concurrent experiments on a host disturb each other: costs of the reference alone, and of as many copies
    as fit. `shape`: devices of an experiment and of the host; `known_from`: the session that measured it."""

    shape: str
    alone: float
    beside: list[float]
    allowed: bool
    known_from: str = ""


class Answered(Event, frozen=True, tag="answered"):
    """A configuration that the KB already knew for this job, hardware and versions: not run again."""

    measurement: Measurement
    measured_by: str  # session


class Simulated(Event, frozen=True, tag="simulated"):
    """A configuration answered by the simulators, on the rung `predicted`."""

    configuration: Configuration
    name: str
    predicted: float  # the objective's metric
    members: dict[str, float]
    why: str = ""  # why the simulators are trusted here


class Checked(Event, frozen=True, tag="checked"):
    """The guard: predicted against measured. `mape` is over the last window of checks."""

    step: int
    name: str
    predicted: float
    measured: float | None
    mape: float
    epsilon: float
    weights: dict[str, float]
    members: dict[str, float] = {}  # predictions of the simulators that took part


class FidelitySwitched(Event, frozen=True, tag="fidelity_switched"):
    """From now on, requests are answered on the rung `to`; today that is always `measured`."""

    step: int
    to: Fidelity
    why: str


class Steered(Event, frozen=True, tag="steered"):
    """An order (kb/orders.py) took effect, or was refused, and why. `why`: the reason that came with it."""

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
    """The `chance` that something at least 1 % better is left, and the expected gain of `ahead` more experiments."""

    step: int
    chance: float
    gain: float
    ahead: int


class Believed(Event, frozen=True, tag="believed"):
    """The search's beliefs about each knob's values when it asked for `step`."""

    step: int
    knobs: dict[str, list[ValueBelief]]


class WarmStarted(Event, frozen=True, tag="warm_started"):
    """What was carried over; `favourites`: the best configurations of similar jobs that are valid here."""

    sources: list[WarmSource] = []
    favourites: list[Configuration] = []
    notes: list[str] = []


class Later(Event, frozen=True, tag="later"):
    """An event of a kind that only a later AutoScout knows; it is shown and stored unchanged."""

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
    """Appends events to one file; opening it cuts off a torn last line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = open(path, "ab+", buffering=0)  # noqa: SIM115 - held for the session
        except OSError as error:
            raise _cannot_write(path, error) from error
        self._cut_torn_line()

    def append(self, *events: Event, sync: bool = True) -> None:
        """Writes one line per event; with `sync`, waits until they are on disk. Without it a kill loses nothing, but a
        power failure may. Errors: AutoscoutError when they cannot be written; then none of them is."""
        if not self.path.exists():
            raise AutoscoutError(
                f"{self.path} was removed or moved while its session ran, so its measurements cannot be kept; "
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
    """Yields (event, offset after its line); stops before a torn last line. `plain`: without control characters.
    `damaged`: gets one error for each line that is no event, which is then passed over instead of raised.

    Errors: AutoscoutError (exit 2) for a file that is not there, (exit 1) for one that cannot be read."""
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
    """The event of a line. Errors: msgspec.DecodeError (ValidationError is a subclass)."""
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
    """The event without the secrets in its texts: those of jobs, of programs' output, and of people."""
    said = msgspec.to_builtins(event)
    kept = secrets.without(said)
    return event if kept == said else msgspec.convert(kept, type(event))


def _cannot_write(path: Path, error: OSError) -> AutoscoutError:
    if error.errno == errno.ENOSPC:
        return AutoscoutError(
            f"{path}: the disk is full; every finished experiment is kept, free some space and run the same "
            f"command with --resume"
        )
    return AutoscoutError(f"{path}: cannot write the journal ({error.strerror}); choose another --kb folder")
