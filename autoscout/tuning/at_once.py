"""Runs both sides of a gate at the same time, each on its own half of this machine, so that the load of other users
slows both alike (Bulej et al., "Duet Benchmarking: Improving Measurement Accuracy in the Cloud", ICPE 2020).

On shared hosts, the speed of each core changes every few seconds. So sides that run on CPUs exchange their halves many
times during a run; sides that run on GPUs, which they cannot leave, exchange them between runs (pairs.order)."""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec

from autoscout.running import power
from autoscout.running.cluster.devices import claimable, device_kind, gpus_of, memory_of
from autoscout.running.cluster.placement import Device, Host, Placement
from autoscout.running.interfaces import OnHosts, Profiler
from autoscout.targets.current_launch import PLACE_CHILDREN, command_line
from autoscout.targets.jobs import JobSpace, profiler_of
from autoscout.tuning.evaluator import Experiment
from autoscout.tuning.loop import Interrupted, Loop, given
from kb.records import AutoscoutError, Configuration, Job, Measurement, MetricSource

_TOPOLOGY = Path("/sys/devices/system/cpu")
_EXCHANGE_S = 0.1  # docs/lab/testing.md: pairs differ by 0.8 % of noise, and by 1.8 % if this is 0.5 s


class Half(msgspec.Struct, frozen=True):
    """Numbers of logical CPUs, and indices of GPUs."""

    cpus: list[int]
    gpus: list[int]


def halves(job: Job, environment: Mapping[str, str]) -> tuple[Half, Half]:
    """Two halves of this machine that share no core. Errors: AutoscoutError (exit 2) if the job does not fit a half."""
    if why := _refused(job):
        raise AutoscoutError(f"--at-once runs A and B at the same time on this machine, but {why}", 2)
    cpus = sorted(os.sched_getaffinity(0), key=lambda cpu: (_core(cpu), cpu))
    if job.launch.launcher == "replay":
        return Half(cpus, []), Half(cpus, [])
    cores = list(dict.fromkeys(_core(cpu) for cpu in cpus))
    first = set(cores[: len(cores) // 2])
    of_cpus = [[cpu for cpu in cpus if (_core(cpu) in first) == here] for here in (True, False)]
    count, needed, of_gpus = min(len(some) for some in of_cpus), job.devices, [list[int](), list[int]()]
    if count and device_kind(job) == "cuda":
        known = dict(environment)
        gpus = claimable(job, gpus_of(known), memory_of(known))
        of_gpus = [gpus[: len(gpus) // 2][:needed], gpus[len(gpus) // 2 :][:needed]]
        count = min(len(some) for some in of_gpus)
    if count < needed:
        raise AutoscoutError(
            f"--at-once runs each side on half of the machine, which has {count} devices for a job that needs "
            f"{needed}; omit --at-once",
            2,
        )
    one, other = (Half(cpus, gpus) for cpus, gpus in zip(of_cpus, of_gpus, strict=True))
    return one, other


def _refused(job: Job) -> str:
    """Why two runs of a job cannot have half of the machine each; "" if they can."""
    launch = job.launch
    outside = {os.path.basename(word) for word in launch.command_prefix} | {*command_line(job).names}
    outside &= {*PLACE_CHILDREN}
    files = {name: each.file for name, each in launch.metrics.items() if isinstance(each, MetricSource)}
    shared = [name for name, file in files.items() if file and "{folder}" not in file]
    if job.cluster.hosts:
        return "the job sets cluster.hosts; omit --at-once"
    if outside:
        return f"{min(outside)} decides where the job's processes run; omit --at-once"
    if given(job):
        return f"CUDA_VISIBLE_DEVICES={given(job)} leaves only these GPUs; unset it, so that all can be divided"
    if power.KNOB in JobSpace.of_job(job).knob:
        return f"the knob {power.KNOB} changes the GPUs of both; omit --at-once"
    if shared:
        return f"both would write the file of launch.metrics.{shared[0]}; use {{folder}} in its name"
    return "both would use launch.kv_folder; omit --at-once" if launch.kv_folder else ""


def _core(cpu: int) -> tuple[int, int]:
    """(socket, core) of a logical CPU; hardware threads of one core have the same."""
    found = []
    for name in ("physical_package_id", "core_id"):
        path = _TOPOLOGY / f"cpu{cpu}" / "topology" / name
        found.append(int(path.read_text()) if path.is_file() else cpu)
    return found[0], found[1]


class Duet:
    """Runs two sides at once, each with a profiler of its own on each half. `loops`: the sides' sessions by name."""

    def __init__(self, loops: Mapping[str, Loop], parts: tuple[Half, Half]) -> None:
        self._loops, self._parts = loops, parts
        self._profilers: dict[tuple[str, int], Profiler] = {}
        # Processes that a profiler keeps alive end with the thread that started them, so it has to last, too.
        self._threads: dict[tuple[str, int], ThreadPoolExecutor] = {}
        for name, loop in loops.items():
            for number, part in enumerate(parts):
                profiler = self._profilers[name, number] = profiler_of(loop.job)
                self._threads[name, number] = ThreadPoolExecutor(1, "duet", os.sched_setaffinity, (0, part.cpus))
                if part.gpus and isinstance(profiler, OnHosts):
                    devices = tuple(Device(str(index)) for index in part.gpus)
                    profiler.on(Placement((Host(os.uname().nodename, devices),)))

    def run(
        self, configurations: Mapping[str, Configuration], order: Sequence[str]
    ) -> dict[str, tuple[Experiment, Measurement]]:
        """Runs each side once, the first one in `order` on the first half. The results are not yet in the sessions
        (Loop.finish). Errors: Interrupted, AutoscoutError."""
        first = self._loops[order[0]]
        if first.stop.asked:
            raise Interrupted
        asked = {name: self._loops[name].engine.ask_for(known, "confirm") for name, known in configurations.items()}

        def measured(name: str, half: int) -> Measurement:
            loop, profiler = self._loops[name], self._profilers[name, half]
            loop.prepare(profiler, asked[name])
            return loop.watched(profiler, asked[name], loop.folder / asked[name].folder)

        with first.holding(whole=True):
            threads = [self._threads[name, half] for half, name in enumerate(order)]
            ids = [thread.submit(threading.get_native_id).result() for thread in threads]
            running = {
                name: thread.submit(measured, name, half)
                for half, (name, thread) in enumerate(zip(order, threads, strict=True))
            }
            try:
                self._wait(ids, list(running.values()))
                found = {name: (asked[name], each.result()) for name, each in running.items()}
            except BaseException:
                self.interrupt()
                wait(running.values())
                raise
        if first.stop.asked >= 2:
            raise Interrupted
        return found

    def _wait(self, ids: Sequence[int], running: Sequence[Future[Measurement]]) -> None:
        """Waits until both sides are done, and meanwhile moves the processes of sides on CPUs to the other half again
        and again. `ids`: of the thread that started the processes on each half. Raises a side's error at once."""
        here, every = 0, None if self._parts[0].gpus else _EXCHANGE_S
        while (now := wait(running, every, FIRST_EXCEPTION)).not_done:
            for each in now.done:
                each.result()
            here = 1 - here
            for half, number in enumerate(ids):
                for task in _tasks_below(number):
                    with contextlib.suppress(OSError):  # the task has ended
                        os.sched_setaffinity(task, self._parts[half ^ here].cpus)

    def interrupt(self) -> None:
        for profiler in self._profilers.values():
            profiler.interrupt()

    def close(self) -> None:
        for thread in self._threads.values():
            thread.shutdown()
        for profiler in self._profilers.values():
            profiler.close()


def _tasks_below(thread: int) -> Iterator[int]:
    """Ids of all threads of the processes that a thread of this process started, and of their descendants."""
    found = _children(Path(f"/proc/self/task/{thread}"))
    while found:
        process = Path(f"/proc/{found.pop()}/task")
        with contextlib.suppress(OSError):
            for task in process.iterdir():
                yield int(task.name)
                found += _children(task)


def _children(task: Path) -> list[str]:
    """Ids of the processes that a thread started; [] if it has ended, or the kernel does not list them."""
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []
