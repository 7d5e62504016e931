"""Runs a session with several experiments at the same time, each on its own devices (lanes.py).

The journal has the ends of experiments in the order in which the engine got the results, so that a resumed session
makes the same decisions. Experiments that started but did not end are run again."""

import contextlib
import time
from collections.abc import Sequence

from autoscout.job.objective import cost
from autoscout.running.cluster import slots
from autoscout.running.cluster.placement import Placement
from autoscout.running.interfaces import Profiler
from autoscout.tuning import sharing_hosts
from autoscout.tuning.evaluator import Experiment
from autoscout.tuning.lanes import Lanes
from autoscout.tuning.loop import PAUSE_S, Interrupted, Loop
from kb.journal import Neighbours
from kb.records import AutoscoutError, Configuration, Job, Measurement
from kb.shared_hosts import found_before


def wanted(job: Job) -> bool:
    return job.launch.launcher != "replay" and bool(job.cluster.hosts or job.cluster.together > 1)


class SideBySide(Loop):
    def _go(self) -> None:
        self._open: dict[int, Experiment] = {}  # experiments that started and have no result yet
        self._places: dict[int, Placement] = {}
        self._holding = contextlib.ExitStack()  # holds the devices' lock while an experiment runs
        self._holds = False
        self._lanes = Lanes(self.job, self.profiler, self.on_note)
        self.stop.now = self._lanes.interrupt
        self.on_note(self._lanes.decision)
        self._undecided = bool(self._lanes.crowd)  # whether sharing a host is still to be decided (sharing_hosts.py)
        with self._holding, contextlib.closing(self._lanes):
            while not self.engine.over:
                self._step()

    def _step(self) -> None:
        if self.tape.replaying:
            self._repeat()
        elif self.stop.asked:
            while self._lanes.running and self.stop.asked < 2:
                self._end_one()
            raise Interrupted
        elif self._start_one():
            return
        elif self._lanes.running:
            self._end_one()
        else:
            self._let_go()
            if self.engine.paused:
                time.sleep(PAUSE_S)

    def _repeat(self) -> None:
        """Replays the next recorded step: a decision on sharing hosts, the end of an experiment, or a start."""
        if (decision := self.tape.recorded(Neighbours)) is not None:
            self._decided(decision)
        elif (ended := self.tape.ended()) is None:
            experiment = self.engine.ask()
            if experiment is not None:
                self._open[experiment.number] = experiment
            elif self.tape.replaying and not self.engine.over and self.tape.ended() is None:
                raise AutoscoutError(
                    "this session's journal does not match the decisions that AutoScout makes, so the "
                    "session cannot be resumed; start the job again"
                )
        elif self._open.pop(ended.number, None) is None:
            raise AutoscoutError(
                "this session's journal has the end of an experiment, but not its start; start the job again"
            )
        else:
            self._told.append(self.engine.tell(ended.number, ended.measurement, ended.placement))

    def _start_one(self) -> bool:
        """Starts the next experiment; False if there is none now, or too few devices are free."""
        if self._lanes.running and slots.wanted_by_others():  # starts no more, so that others get the devices soon
            return False
        if not self._lanes.room:
            return False
        alone = self.engine.evaluator.done.get(self.engine.started.default.id)
        if self._undecided and alone is not None and cost(self.job.objective, alone) is not None:
            self._decide(alone)
        experiment, placement = self._next()
        if experiment is None or placement is None:
            self._lanes.give_back()
            return False
        self._open[experiment.number], self._places[experiment.number] = experiment, placement
        if not self._holds:
            self._holding.enter_context(self.holding())
            self._holds = True
        chosen = placement if self.job.cluster.hosts else None  # None: the launcher chooses devices
        self._lanes.run(
            experiment.number,
            placement,
            lambda profiler: self.prepare(profiler, experiment, chosen),
            lambda profiler: self._measured(profiler, experiment),
        )
        return True

    def _decide(self, alone: Measurement) -> None:
        """Decides whether experiments share a host: as an earlier session did, or by a test (sharing_hosts.py)."""
        started, shape = self.engine.started, self._lanes.shape
        found = found_before(self.kb, started.context, shape)
        if found is None:
            if not self._holds:
                self._holding.enter_context(self.holding())
                self._holds = True
            names = iter(range(1, len(self._lanes.crowd) + 1))
            reference = Experiment(0, "neighbours", started.default, self.engine.space.name(started.default), "", False)

            def run(profiler: Profiler) -> Measurement:
                return self.watched(profiler, reference, self.folder / "neighbours" / str(next(names)))

            together = self._lanes.together(lambda profiler, at: self.prepare(profiler, reference, at), run)
            if self.stop.asked >= 2:
                raise Interrupted
            found = sharing_hosts.judged(self.job, shape, alone, together)
        self._decided(self.tape.emit(found, sync=True))

    def _decided(self, found: Neighbours) -> None:
        self._undecided = False
        self._lanes.share(found.allowed)
        self.on_note(sharing_hosts.sentence(found))

    def _next(self) -> tuple[Experiment | None, Placement | None]:
        """The next experiment to start, with its placement; experiments that a killed run did not finish come first."""
        left = [e for number, e in self._open.items() if number not in self._places]
        for experiment in left:
            if (placement := self._lanes.reserve(experiment.configuration)) is not None:
                return experiment, placement
        if left:
            return None, None

        def place(configuration: Configuration, before: Sequence[Configuration]) -> str | None:
            placement = self._lanes.reserve(configuration, before)
            return placement.spelled if placement else None

        return self.engine.ask(place), self._lanes.reserved

    def _measured(self, profiler: Profiler, experiment: Experiment) -> Measurement:
        """Runs an experiment and its quality check; called in the experiment's own thread."""
        folder = self.folder / experiment.folder
        adopted = profiler.adopt(folder)
        if adopted is not None and adopted.configuration.id == experiment.configuration.id:
            return adopted
        measurement = self.watched(profiler, experiment, folder)
        if not self._quality.wanted(measurement):
            return measurement
        with self._one_check:
            return self._quality.judged(measurement, lambda: self.stop.asked >= 2)

    def _let_go(self) -> None:
        self._holding.close()
        self._holds = False

    def _end_one(self) -> None:
        number, found = self._lanes.wait()
        if self.stop.asked >= 2:
            raise Interrupted
        if not self._lanes.running and (slots.wanted_by_others() or self.engine.paused):
            self._let_go()
        self._tell(self._open.pop(number), found, self._places.pop(number).spelled)
