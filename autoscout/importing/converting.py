"""Converts table rows to measurements of a job. Rows that cannot be used are listed with the reason."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property, lru_cache

import msgspec

from autoscout.importing.circumstances import COLUMNS, COUNTS, NODES, Lengths, another_job, failure, lengths_of
from autoscout.importing.ended import Flag, end_of, flagged
from autoscout.importing.mapping import Use, flag_of, knob_value
from autoscout.importing.plausible import implausible
from autoscout.job.lengths import tokens_of_step
from autoscout.job.metrics import metrics_of_task
from autoscout.job.units import quantity, unit_of
from autoscout.space.graph import Space
from autoscout.targets.found import Cell, Row, RowSource, number_in
from kb import door
from kb.records import Configuration, Job, Measurement, Status, Value, content_hash

RAISED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, msgspec.MsgspecError)
_LEAST, _MOST = 1e-12, 1e18  # accepted range of a metric, in the metric's own unit
_EVIDENCE = 2000  # maximum length of the error text, in characters
_NOT_FINITE = ("nan", "inf", "-inf", "infinity")
_THOUSANDS = re.compile(r"([\d.]+) ?[kK]")  # 12.3k tokens/s
_LISTED = 20  # maximum number of accepted rows, and of rejected rows, that the report lists (it counts all)


class Bad(msgspec.Struct, frozen=True):
    where: str
    reason: str


class Shown(msgspec.Struct, frozen=True):
    """A row's values, converted to the units in the metrics' names. `at`: unix time at the end of the row's run, 0 if
    unknown."""

    where: str
    name: str
    status: str
    metrics: dict[str, float]
    cost_s: float
    at: float
    evidence: str = ""


class Done(msgspec.Struct, kw_only=True):
    id: str
    reader: str
    rows: int = 0
    good: int = 0
    valid: int = 0  # rows whose configuration is valid in the job's space
    new: int = 0
    known: int = 0
    columns: dict[str, str] = {}  # column → how it was interpreted, as text
    notes: list[str] = []
    bad: list[Bad] = []
    shown: list[Shown] = []


class Converting:
    """Converts rows to measurements; counts and lists the rejected rows."""

    def __init__(
        self, job: Job, space: Space, source: RowSource, meant: dict[str, Use], fixed: dict[str, Value], done: Done
    ) -> None:
        self.job, self.space, self.source, self.meant, self.fixed, self.done = job, space, source, meant, fixed, done
        self.named = {use.name for use in meant.values() if use.kind == "metric"}
        self.wanted = {*metrics_of_task(job.task), job.objective.metric}
        self.no_numbers: Counter[str] = Counter()
        self.left_out: Counter[tuple[str, str]] = Counter()
        self.devices = job.devices
        self.computed = ""  # how a metric was computed, as a note
        used = [(column, use) for column, use in meant.items() if use.kind != "left out"]
        self._knobs = [(column, use) for column, use in used if use.kind == "knob"]
        self._columns = [(c, use, unit_of(use.name), "loss" in c.lower()) for c, use in used if use.kind != "knob"]
        silent = [] if source.meaning else [c for c, use in meant.items() if use.kind in ("kept", "number", "left out")]
        self._says = [(c, COLUMNS[flag_of(c)]) for c in silent if flag_of(c) in COLUMNS and meant[c].why != "as wished"]
        if any(flag_of(c) in NODES for c in meant):
            self._says = [(c, name) for c, name in self._says if name != "devices"]
        self._flags: list[tuple[str, Status]] = [
            (c, status) for c in silent if (status := flagged(flag_of(c))) and meant[c].why != "as wished"
        ]
        done.columns |= {c: "status, if yes or no" for c, _ in self._flags} | {
            c: "a number of requests" for c, name in self._says if name in COUNTS and job.task == "serve"
        }
        self._seen: dict[tuple[str, ...], tuple[Configuration, str, bool]] = {}  # keyed by the knobs' cells
        self._context = lru_cache(1000)(lambda environment: content_hash([job.id, "import", dict(environment)]))

    @cached_property
    def lengths(self) -> Lengths:
        return lengths_of(self.job.traffic) if self.job.task == "serve" else []

    def measurements(self) -> Iterator[Measurement]:
        for row in self.source.rows:
            self.done.rows += 1
            try:
                said = row.said or self._said(row)
                if problem := row.problem or another_job(said, self.job, self.lengths, table=not row.said):
                    raise ValueError(problem)
                measurement = self._measurement(row, said)
            except (door.Refused, *RAISED) as error:
                if len(self.done.bad) < _LISTED:
                    self.done.bad.append(Bad(row.where, str(error)))
                continue
            self.done.good += 1
            if len(self.done.shown) < _LISTED:
                self.done.shown.append(self._shown(row.where, measurement))
            yield measurement

    def _said(self, row: Row) -> dict[str, Cell]:
        """Returns the conditions that the columns of a user's table state."""
        return {name: cell for column, name in self._says if (cell := row.cells.get(column)) not in (None, "")}

    def _shown(self, where: str, row: Measurement) -> Shown:
        metrics = {name: value for name, value in row.metrics.items() if name in self.named}
        return Shown(where, row.name, row.status, metrics, row.cost_s, row.at, row.evidence)

    def notes(self) -> list[str]:
        notes = [
            f"{n} values of {c} are not {'times' if self.meant[c].kind == 'at' else 'finite numbers'} and were left out"
            for c, n in self.no_numbers.items()
            if n
        ]
        notes += [f"{n} values of {c} look like {what} and were left out" for (c, what), n in self.left_out.items()]
        both = [(column, use.name) for column, use in self._knobs if use.name in self.fixed]
        notes += [f"--set {name} applies only to rows without a value in column {column}" for column, name in both]
        if self.computed:
            notes.append(self.computed)
        if self.source.simulated:
            notes.append("the values are estimates, so they are stored as predictions, never as measurements")
        return notes

    def _measurement(self, row: Row, said: Mapping[str, Cell]) -> Measurement:
        metrics: dict[str, float] = {}
        environment: dict[str, str] = {}
        stated: dict[str, Cell] = {}
        not_finite, texts = "", list[tuple[str, str, Cell]]()
        for column, use, unit, loss in self._columns:
            cell = row.cells.get(column)
            if cell is None or cell == "":
                continue
            match use.kind:
                case "metric":
                    if not self._metric(metrics, use, unit, column, cell):
                        texts.append((use.name, column, cell))
                case "kept" | "number":
                    self._keep(metrics, environment, column, cell, use.kind == "kept")
                    if loss and isinstance(cell, float | str) and str(cell).lower() in _NOT_FINITE:
                        not_finite = column
                case "at":
                    stated["at"] = _unix_s(cell, use.factor)
                    self.no_numbers[column] += math.isnan(stated["at"])
                case _:
                    stated[use.name] = cell if use.factor == 1 else number_in(cell) * use.factor
        serves = self.job.task == "serve"
        flags = [
            Flag(column, known, serves and COLUMNS.get(flag_of(column)) in COUNTS, row.cells.get(column))
            for column, known in self._flags
        ]
        instead = [str(cell) for _, _, cell in texts]
        known, evidence = end_of(str(stated.get("status", "")), str(stated.get("evidence", "")), flags, instead)
        for name, column, cell in texts if known == "ok" else ():
            if name == self.job.objective.metric:
                lacks = "has no unit" if math.isnan(self.meant[column].factor) else "is not a number"
                raise ValueError(f"{column} is '{cell}', which {lacks}")
            self.no_numbers[column] += 1
        cost_s, at = number_in(stated.get("cost_s", 0.0)), number_in(stated.get("at", 0.0))
        if known == "ok" and (row.said or self.job.task == "serve") and (failed := failure(said)):
            known, evidence = "error", failed
            # The metrics in `named` describe only the requests that succeeded, so a failed run must not have them.
            metrics = {name: value for name, value in metrics.items() if name not in self.named}
        if known == "ok" and not_finite:
            known, evidence = "wrong", f"{not_finite} is not a number"
        if known == "ok":
            self._complete(metrics)
        configuration, name, valid = self._configured(row.cells)
        if known != "ok" and not row.said and not any(row.cells.get(c) not in (None, "") for c, _ in self._knobs):
            raise ValueError(
                "the run failed, and its row has neither a knob of the job nor a load, so it may belong to a "
                "different job"
            )
        if known == "ok" and not any(name in metrics for name in self.named):
            raise ValueError(f"the row has no metric{self._why_none(row)}")
        self._refuse(metrics, known, cost_s, at)
        if known == "ok" and (wrong := implausible(metrics, said, self.job)):
            raise ValueError(wrong)
        cost_s, at = max(0.0, cost_s), max(0.0, at)  # an unknown time is NaN; max() converts it to 0
        self.done.valid += valid
        return Measurement(
            configuration=configuration,
            name=name,
            context=self._context(tuple(environment.items())),
            status=known,
            fidelity="predicted" if self.source.simulated else "measured",
            metrics=metrics,
            evidence=door.without_places(door.plain(evidence))[:_EVIDENCE] if known != "ok" else "",
            cost_s=cost_s,
            device_s=cost_s * self.devices,
            environment=environment,
            at=at,
        )

    def _configured(self, cells: Mapping[str, Cell]) -> tuple[Configuration, str, bool]:
        """Returns (configuration of a row's knobs, its name, whether it is valid). Errors: ValueError for an impossible
        value, and for a row without knobs."""
        texts = tuple(["" if (cell := cells.get(column)) is None else str(cell) for column, _ in self._knobs])
        if texts not in self._seen:
            if len(self._seen) > 100_000:
                self._seen.clear()
            knobs = dict(self.fixed)
            for text, (_, use) in zip(texts, self._knobs, strict=True):
                if text and text.lower() != "nan":  # skip empty cells: the row's run did not use this knob
                    value = text if use.factor == 1 else number_in(text) * use.factor
                    knobs[use.name] = knob_value(self.space, use.name, value)
            if not knobs:
                raise ValueError(
                    "the row has no knob of the job; give its configuration with --set KNOB=VALUE or --set NAME"
                )
            configuration = Configuration({k.name: knobs[k.name] for k in self.space.knobs if k.name in knobs})
            door.check_configuration(configuration)
            self._seen[texts] = configuration, self.space.name(configuration), self.space.is_valid(configuration)
        return self._seen[texts]

    def _refuse(self, metrics: dict[str, float], known: Status, cost_s: float, at: float) -> None:
        """Raises ValueError for impossible numbers. NaN is an unknown time."""
        if known == "ok" and not self.wanted & metrics.keys():
            raise ValueError(
                f"the row is not of a {self.job.task} job: its metrics are "
                f"{', '.join(sorted(self.named & metrics.keys()))}"
            )
        positive = (self.job.objective.metric, "step_time_s", "tokens_per_s") if known == "ok" else ()
        for name, value in metrics.items():
            least = _LEAST if name in positive else 0.0
            if name in self.named and not (value == 0 == least or _LEAST <= value <= _MOST):
                raise ValueError(f"{name} is {value:g}, which is impossible")
        if not (0 <= cost_s <= _MOST or math.isnan(cost_s)) or not (0 <= at < door.LATEST or math.isnan(at)):
            raise ValueError(
                f"the row's duration ({cost_s:g} s) or end time ({at:g}, in seconds since 1970) is impossible; check "
                "their units (--unit COLUMN=UNIT)"
            )

    def _why_none(self, row: Row) -> str:
        """Returns the reason why a row has no metric, as the end of a sentence."""
        for column, use, _, _ in self._columns:
            if use.kind == "metric" and (cell := row.cells.get(column)) not in (None, ""):
                return f": {column} is '{cell}', which is not a number"
        return "" if self.named else "; name the column that contains one with --map COLUMN=METRIC"

    def _complete(self, metrics: dict[str, float]) -> None:
        """Adds the objective if it is the step time or the tokens per second, and a training row has only the other, or
        another rate. Where samples are padded, tools count different tokens."""
        ours, traffic = self.job.objective.metric, self.job.traffic
        if self.job.task == "serve" or ours not in ("step_time_s", "tokens_per_s") or ours in metrics:
            return
        tokens = 0.0 if traffic.lengths else tokens_of_step(traffic)
        each = {"tokens_per_s": tokens, "tokens_per_s_per_gpu": tokens / self.devices}
        each |= {"samples_per_s": traffic.global_batch, "steps_per_s": 1.0}
        seconds = {name: work / metrics[name] for name, work in each.items() if work and metrics.get(name, 0.0) > 0}
        seconds |= {"step_time_s": time} if (time := metrics.get("step_time_s", 0.0)) > 0 else {}
        given = next((name for name in seconds if name in self.named), "")
        if not given or (ours == "tokens_per_s" and not tokens):
            return
        metrics[ours] = seconds[given] if ours == "step_time_s" else tokens / seconds[given]
        self.named.add(ours)
        self.computed = f"{ours} was computed from {given}"
        if tokens and "tokens" in ours + given:
            self.computed += f", with {tokens:,.0f} tokens a step"

    def _metric(self, metrics: dict[str, float], use: Use, unit: str, column: str, cell: Cell) -> bool:
        """Adds a cell to `metrics`; returns False if it contains no finite number."""
        number = number_in(cell) * use.factor
        if number != number and not unit and (short := _THOUSANDS.fullmatch(str(cell))):
            number = number_in(short[1]) * 1000
        if number != number and isinstance(cell, str) and (converted := quantity(cell, unit)) is not None:
            number = converted  # a value such as "12 ms" includes its unit, so the column's unit does not apply
        if math.isfinite(number):
            metrics[use.name] = number
        return math.isfinite(number)

    def _keep(
        self, metrics: dict[str, float], environment: dict[str, str], column: str, cell: Cell, text: bool
    ) -> None:
        number = float(cell) if isinstance(cell, bool) else number_in(cell)
        if math.isfinite(number) and abs(number) <= _MOST:
            metrics[column] = number
        elif isinstance(cell, float) or not text:
            self.no_numbers[column] += 1
        elif what := door.private(str(cell)):
            self.left_out[column, what] += 1
        else:
            environment[door.plain(column)] = door.plain(str(cell)[:200])


def _unix_s(cell: Cell, factor: float) -> float:
    """Converts a number, a date or a text in ISO 8601 to seconds since 1970; NaN for others. A time without a zone is
    local."""
    number = number_in(cell) * factor
    if number == number:
        return number
    try:
        return (cell if isinstance(cell, datetime) else datetime.fromisoformat(str(cell).strip())).timestamp()
    except (ValueError, OverflowError):
        return math.nan


def in_words(use: Use) -> str:
    text = {"kept": "kept", "left out": "left out"}.get(use.kind, f"{use.kind} {use.name}")
    return f"{text} ({use.why})" if use.why else text
