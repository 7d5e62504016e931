"""Sessions against recorded measurements: resume, kill, interrupt, the KB, and never recommending what is wrong.

The landscape is a real one: every configuration of fixtures/jobs/smallest-cpu.toml, measured (fixtures/recorded).
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from autoscout.deploy.recommendation import best_of_session
from autoscout.job.load import with_budget
from autoscout.job.objective import cost
from autoscout.search.hyper import Hyper
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning import session
from autoscout.tuning.loop import Interrupted, Stop
from kb import journal as journals
from kb import store
from kb.journal import Answered, BestFound, Confirmed, Decided, ExperimentEnded, ExperimentStarted, SessionStarted
from kb.records import AutoscoutError

RECORDED = Path("fixtures/recorded/smallest-cpu.jsonl").resolve()


def replay_job(tmp_path: Path, recorded: Path = RECORDED, profiles: int = 14):
    text = Path("fixtures/jobs/smallest-cpu.toml").read_text()
    text = text.replace("[launch]", f'[launch]\nlauncher = "replay"\nrecorded = "{recorded}"')
    path = tmp_path / "replay.toml"
    path.write_text(text.replace("profiles = 8", f"profiles = {profiles}"))
    return path


def run(job_file: Path, kb: Path, on_event=lambda e: None, stop=None, **options):
    return session.tune(
        load_job(job_file), kb, session.SessionOptions(**options), on_event, lambda text: None, stop or Stop()
    )


def decisions(kb: Path, name: str):
    events = journals.events(store.sessions_folder(kb) / name / "journal.jsonl")
    return [
        (e.arm, [c.id for c in e.configurations]) if isinstance(e, Decided) else (e.number, e.configuration.id)
        for e in events
        if isinstance(e, Decided | ExperimentStarted)
    ]


E = TypeVar("E", bound=journals.Event)


def events_of(kb: Path, name: str, kind: type[E]) -> list[E]:
    path = store.sessions_folder(kb) / name / "journal.jsonl"
    return [e for e in journals.events(path) if isinstance(e, kind)]


def test_a_session_ends_on_a_confirmed_winner(tmp_path):
    kb = tmp_path / "kb.duckdb"
    result = run(replay_job(tmp_path), kb)
    assert result.reason == "budget"
    assert result.confirmed is not None
    rows = store.measurements(kb)
    assert len(rows) == result.experiments
    confirming = [m for _, m in rows if m.configuration.id == result.confirmed.winner.id]
    assert all(m.status == "ok" for m in confirming)
    assert len(events_of(kb, result.session, ExperimentEnded)) == result.experiments


def test_the_same_seed_and_measurements_write_the_same_decisions(tmp_path):
    job = replay_job(tmp_path)
    first = run(job, tmp_path / "a" / "kb.duckdb", seed=3)
    again = run(job, tmp_path / "b" / "kb.duckdb", seed=3)
    assert decisions(tmp_path / "a" / "kb.duckdb", first.session) == decisions(
        tmp_path / "b" / "kb.duckdb", again.session
    )


def test_the_second_run_of_a_job_is_answered_from_the_knowledge_base(tmp_path):
    kb, job = tmp_path / "kb.duckdb", replay_job(tmp_path)
    first = run(job, kb, fidelity="profile")
    second = run(job, kb, fidelity="profile")
    searched = {e.measurement.configuration.id for e in events_of(kb, first.session, ExperimentEnded)}
    answered = events_of(kb, second.session, Answered)
    assert answered
    assert {e.measurement.configuration.id for e in answered} <= searched
    assert {e.measured_by for e in answered} == {first.session}
    new = [e for e in events_of(kb, second.session, ExperimentEnded) if e.purpose == "search"]
    assert searched.isdisjoint({e.measurement.configuration.id for e in new})


@pytest.mark.thorough
def test_without_warm_start_nothing_is_taken_from_the_knowledge_base(tmp_path):
    kb, job = tmp_path / "kb.duckdb", replay_job(tmp_path)
    run(job, kb)
    second = run(job, kb, warm_start="off")
    assert events_of(kb, second.session, Answered) == []


def test_a_wrong_configuration_is_stored_with_its_evidence_and_never_recommended(tmp_path):
    """The fastest recorded configuration is made to compute something else."""
    job = load_job("fixtures/jobs/smallest-cpu.toml")
    default = load_default()
    ended = [e.measurement for e in journals.events(RECORDED) if isinstance(e, ExperimentEnded)]
    others = [m for m in ended if m.configuration != default and m.configuration.knobs["ar"] == "none"]
    fastest = min(others, key=lambda m: cost(job.objective, m) or 9.0).configuration
    kb = tmp_path / "kb.duckdb"
    path = replay_job(tmp_path, spoiled(tmp_path, lambda m: m.configuration == fastest), profiles=330)
    path.write_text(path.read_text() + '[space]\nfix = { ar = "none" }\n')
    result = run(path, kb, strategy="random", hyper=Hyper(patience=1000, settled=0))
    measured = {m.configuration.id: m for _, m in store.measurements(kb)}
    assert measured[fastest.id].status == "wrong"
    assert "gradient norms deviate" in measured[fastest.id].evidence
    assert result.confirmed is not None
    assert result.confirmed.winner != fastest


def test_interrupted_once_it_stops_after_the_experiment_and_resumes_where_it_was(tmp_path):
    kb, job = tmp_path / "kb.duckdb", replay_job(tmp_path)
    whole = run(job, tmp_path / "whole" / "kb.duckdb", seed=1)
    stop, seen = Stop(), []

    def after_five(event):
        seen.append(event)
        if sum(isinstance(e, ExperimentEnded) for e in seen) == 5:
            stop.ask()

    with pytest.raises(Interrupted):
        run(job, kb, after_five, stop, seed=1)
    name = next(e.session for e in seen if isinstance(e, SessionStarted))
    assert len(events_of(kb, name, ExperimentEnded)) == 5
    assert len(store.measurements(kb)) == 5
    resumed = session.resume(name, kb, lambda e: None, lambda text: None, Stop())
    assert resumed.confirmed == whole.confirmed or (
        resumed.confirmed is not None
        and whole.confirmed is not None
        and resumed.confirmed.winner == whole.confirmed.winner
    )
    assert decisions(kb, name) == decisions(tmp_path / "whole" / "kb.duckdb", whole.session)


def test_resuming_a_finished_session_runs_nothing(tmp_path):
    kb = tmp_path / "kb.duckdb"
    done = run(replay_job(tmp_path), kb)
    again = session.resume(done.session, kb, lambda e: None, lambda text: None, Stop())
    assert again.confirmed == done.confirmed
    assert len(events_of(kb, done.session, ExperimentEnded)) == done.experiments


def test_the_worst_that_was_seen_may_have_been_ended_early(tmp_path):
    """1.2 × was said of a session that had seen 4 ×."""
    kb = tmp_path / "kb.duckdb"
    done = run(replay_job(tmp_path, profiles=6), kb)
    worst = best_of_session(kb, done.session).worst
    assert worst is not None
    path = store.sessions_folder(kb) / done.session / "journal.jsonl"
    lines = [
        line.replace('"fidelity":"measured"', '"fidelity":"short"') if f'"name":"{worst.name}"' in line else line
        for line in path.read_text().splitlines(keepends=True)
    ]
    assert any('"fidelity":"short"' in line for line in lines)
    path.write_text("".join(lines))
    assert best_of_session(kb, done.session).worst == worst


def test_a_longer_wall_goes_on_with_rounds_that_the_wall_ended(tmp_path):
    """It was refused: an undecided session had to be measured anew."""
    kb, notes = tmp_path / "kb.duckdb", []
    job = load_job(replay_job(tmp_path, profiles=4))
    done = session.tune(job, kb, session.SessionOptions(), lambda e: None, notes.append, Stop())
    again = next(int(note.split()[1]) for note in notes if note.startswith("measuring "))
    path = store.sessions_folder(kb) / done.session / "journal.jsonl"
    events, lines = journals.events(path), path.read_bytes().splitlines(keepends=True)
    rounds = [n for n, e in enumerate(events) if isinstance(e, ExperimentEnded) and e.purpose == "confirm"]
    verdict = next(line for line, e in zip(lines, events, strict=True) if isinstance(e, Confirmed))
    path.write_bytes(b"".join([*lines[: rounds[again] + 1], verdict, lines[-1]]))  # the reference runs twice in a round
    short = done.experiments - len(rounds) + again + 1
    limits = (("", short, "budget"), ("0.01s", short, "wall"), ("3h", done.experiments, "budget"))
    for wall, ran, reason in (*limits, ("", done.experiments, "budget")):
        result = session.resume(done.session, kb, lambda e: None, lambda text: None, Stop(), wall=wall)
        assert (result.experiments, result.reason) == (ran, reason), wall
    assert result.confirmed.sentence == done.confirmed.sentence


def test_where_torch_is_missing_a_resume_names_it(tmp_path):
    """It named other hardware: what one side lacks was not looked at."""
    kb = tmp_path / "kb.duckdb"
    done = run(replay_job(tmp_path, profiles=1), kb)
    started = store.session_started(kb, done.session)
    here = {name: value for name, value in started.environment.items() if name != "torch"}
    space = JobSpace.of_job(started.job)
    resumed = session.resumed(done.session, kb, space, here, lambda e: None, lambda text: None)
    with (
        pytest.raises(AutoscoutError, match=r"measured with torch \S+ \(here none\); its results cannot be compared"),
        resumed,
    ):
        pass


def test_a_session_whose_folder_was_removed_ends_at_once(tmp_path):
    """It measured to the end, and only then named what nothing keeps."""
    kb, after = tmp_path / "kb.duckdb", []

    def remove(event):
        after.append(event)
        if isinstance(event, ExperimentEnded) and event.number == 3:
            shutil.rmtree(store.sessions_folder(kb))

    with pytest.raises(AutoscoutError, match="was removed or moved during the session, so measurements cannot"):
        run(replay_job(tmp_path), kb, remove)
    assert sum(isinstance(event, ExperimentEnded) for event in after) == 3


def test_a_session_that_runs_cannot_be_resumed_beside_itself(tmp_path):
    kb = tmp_path / "kb.duckdb"
    refusals = []

    def try_it(event):
        if isinstance(event, BestFound) and not refusals:
            name = next(store.sessions_folder(kb).iterdir()).name
            with pytest.raises(AutoscoutError, match="is running in another process") as refused:
                session.resume(name, kb, lambda e: None, lambda text: None, Stop())
            refusals.append(refused)

    run(replay_job(tmp_path), kb, try_it)
    assert refusals


def test_nothing_feasible_is_said_with_an_example(tmp_path):
    job = load_job(replay_job(tmp_path, profiles=3))
    objective = msgspec.structs.replace(job.objective, constraints=["peak_memory_gib <= 0.001"])
    job = msgspec.structs.replace(job, objective=objective)
    with pytest.raises(AutoscoutError, match="no configuration of smallest-cpu ran correctly") as refused:
        session.tune(job, tmp_path / "kb.duckdb", session.SessionOptions(), lambda e: None, lambda text: None, Stop())
    assert refused.value.exit_code == 3


def test_the_wall_clock_limit_ends_the_search_and_still_confirms_once(tmp_path):
    kb, job = tmp_path / "kb.duckdb", with_budget(load_job(replay_job(tmp_path)), 300, "0.01s")
    result = session.tune(job, kb, session.SessionOptions(), lambda e: None, lambda t: None, Stop())
    assert result.reason == "wall"
    assert result.confirmed is not None
    assert result.confirmed.pairs == 1
    again = session.resume(result.session, kb, lambda e: None, lambda t: None, Stop())
    assert again.confirmed == result.confirmed
    assert again.experiments == result.experiments


@pytest.mark.thorough
def test_a_clock_that_is_set_back_changes_no_time_of_a_session(tmp_path, monkeypatch):
    """Elapsed times once read -2:01:22."""
    set_back, seen = [0.0], []
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - set_back[0])

    def two_hours_at_the_third(event):
        seen.append(event)
        if sum(isinstance(e, ExperimentEnded) for e in seen) == 3:
            set_back[0] = 7200.0

    result = run(replay_job(tmp_path), tmp_path / "kb.duckdb", two_hours_at_the_third)
    assert result.reason == "budget"
    times = [e.at for e in seen]
    assert times == sorted(times)


def test_a_full_disk_is_one_sentence_and_costs_no_finished_experiment(tmp_path):
    """A limit on the size of files stands for the full disk: the journal cannot grow beyond it."""
    script = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from pathlib import Path
from autoscout.tuning import session
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.loop import Stop
from kb.journal import ExperimentEnded
from kb.records import AutoscoutError
n = 0
def on_event(e):
    global n
    n += isinstance(e, ExperimentEnded)
    if n == 4:
        size = next(Path({str(tmp_path)!r}).glob("sessions/*/journal.jsonl")).stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
try:
    session.tune(load_job({str(replay_job(tmp_path))!r}), Path({str(tmp_path / "kb.duckdb")!r}),
                 session.SessionOptions(), on_event, print, Stop())
except AutoscoutError as error:
    print("SAID", error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=1800)
    assert "SAID" in done.stdout, done.stderr
    assert "cannot write the journal" in done.stdout or "disk is full" in done.stdout
    kb = tmp_path / "kb.duckdb"
    name = next(store.sessions_folder(kb).iterdir()).name
    kept = len(events_of(kb, name, ExperimentEnded))
    assert kept >= 3
    resumed = session.resume(name, kb, lambda e: None, lambda text: None, Stop())
    assert resumed.confirmed is not None


START = """
import sys
from pathlib import Path
from autoscout.tuning import session
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.loop import Stop
from autoscout.search.hyper import Hyper
options = session.SessionOptions(seed=1, hyper=Hyper(patience=1000, settled=0))
session.tune(load_job(sys.argv[1]), Path(sys.argv[2]), options, lambda event: None, print, Stop())
"""


@pytest.mark.thorough
def test_killed_at_random_moments_and_resumed_it_ends_as_if_nothing_had_happened(tmp_path):
    """kill -9, each followed by a resume: no finished experiment is repeated or lost, and the winner is the same."""
    job = replay_job(tmp_path, profiles=100)
    whole = run(job, tmp_path / "whole" / "kb.duckdb", seed=1, hyper=Hyper(patience=1000, settled=0))
    kb = tmp_path / "kb.duckdb"
    rng = random.Random(0)
    command = [sys.executable, "-c", START, str(job), str(kb)]
    name = ""
    finished: list[str] = []
    for _ in range(7):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        size = _journal_size(kb)
        while _journal_size(kb) == size and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.4))
        assert process.poll() is None, "the session ended before it was killed seven times"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        (path,) = store.sessions_folder(kb).glob("*/journal.jsonl")
        name = path.parent.name
        ended = [e.measurement.id for e in events_of(kb, name, ExperimentEnded)]
        assert ended[: len(finished)] == finished
        finished = ended
        command = [sys.executable, "-m", "tui.cli", "tune", "--no-tui", "--resume", name, "--kb", str(kb)]
    last = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert last.returncode == 0, last.stderr
    events = events_of(kb, name, ExperimentEnded)
    assert [e.number for e in events] == list(range(1, len(events) + 1))
    searched = Counter(e.measurement.configuration.id for e in events if e.purpose == "search")
    assert searched.most_common(1)[0][1] == 1
    assert decisions(kb, name) == decisions(tmp_path / "whole" / "kb.duckdb", whole.session)
    (confirmed,) = events_of(kb, name, Confirmed)
    assert whole.confirmed is not None
    assert (confirmed.winner, confirmed.value) == (whole.confirmed.winner, whole.confirmed.value)
    assert len(store.measurements(kb)) == len(events)


def _journal_size(kb: Path) -> int:
    return sum(path.stat().st_size for path in store.sessions_folder(kb).glob("*/journal.jsonl"))


def test_a_torn_last_line_is_cut_off_and_the_session_goes_on(tmp_path):
    kb = tmp_path / "kb.duckdb"
    done = run(replay_job(tmp_path), kb)
    path = store.sessions_folder(kb) / done.session / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]) + b'{"type":"experiment_en')
    again = session.resume(done.session, kb, lambda e: None, lambda text: None, Stop())
    assert again.confirmed is not None
    assert all(json.loads(line) for line in path.read_bytes().splitlines())


def interrupted_after(job: Path, kb: Path, experiments: int, **options) -> str:
    """Runs a session until so many experiments have ended; returns its name."""
    stop, seen = Stop(), []

    def count(event):
        seen.append(event)
        if sum(isinstance(e, ExperimentEnded) for e in seen) == experiments:
            stop.ask()

    with pytest.raises(Interrupted):
        run(job, kb, count, stop, **options)
    return next(e.session for e in seen if isinstance(e, SessionStarted))


def spoiled(tmp_path: Path, chosen) -> Path:
    """The recorded landscape with other gradient norms where `chosen(measurement)`."""
    path = tmp_path / "spoiled.jsonl"
    journal = journals.Journal(path)
    for event in journals.events(RECORDED):
        if isinstance(event, ExperimentEnded) and chosen(event.measurement):
            broken = msgspec.structs.replace(event.measurement, grad_norms=[26.0, 60.0, 122.0])
            event = msgspec.structs.replace(event, measurement=broken)
        journal.append(event, sync=False)
    journal.close()
    return path


def test_a_resumed_session_holds_on_to_the_reference_that_the_knowledge_base_gave(tmp_path):
    """The default is known, what runs first after the resume computes something else: it must not set the standard."""
    kb = tmp_path / "kb.duckdb"
    honest = replay_job(tmp_path)
    interrupted_after(honest, kb, 1)
    default = load_default()
    lies = replay_job(tmp_path, spoiled(tmp_path, lambda m: m.configuration != default))
    name = interrupted_after(lies, kb, 1)
    resumed = session.resume(name, kb, lambda e: None, lambda text: None, Stop())
    assert resumed.confirmed is not None
    assert resumed.confirmed.winner == default
    ended = events_of(kb, name, ExperimentEnded)
    assert {e.measurement.status for e in ended if e.measurement.configuration != default} == {"wrong"}


def load_default():
    return next(e.default for e in journals.events(RECORDED) if isinstance(e, SessionStarted))


def test_a_listener_that_fails_costs_no_finished_experiment(tmp_path):
    kb, seen = tmp_path / "kb.duckdb", []

    def fails_at_the_third(event):
        seen.append(isinstance(event, ExperimentEnded))
        if sum(seen) == 3:
            raise OSError("nobody listens")

    with pytest.raises(OSError, match="nobody listens"):
        run(replay_job(tmp_path), kb, fails_at_the_third)
    name = next(store.sessions_folder(kb).iterdir()).name
    assert len(events_of(kb, name, ExperimentEnded)) == 3


@pytest.mark.thorough
def test_resuming_works_when_the_knowledge_base_is_gone(tmp_path):
    """It is rebuilt from the journals: they are the truth."""
    kb, job = tmp_path / "kb.duckdb", replay_job(tmp_path)
    run(job, kb, fidelity="profile")
    name = interrupted_after(job, kb, 3, seed=5)
    kb.unlink()
    resumed = session.resume(name, kb, lambda e: None, lambda text: None, Stop())
    assert resumed.confirmed is not None


@pytest.mark.thorough
def test_only_simulating_needs_something_to_simulate_from_and_profiles_the_favourites(tmp_path):
    kb, job = tmp_path / "kb.duckdb", replay_job(tmp_path, profiles=60)
    with pytest.raises(AutoscoutError, match="--fidelity simulate needs simulators"):
        run(job, kb, fidelity="simulate")
    run(job, kb, strategy="random", fidelity="profile", hyper=Hyper(patience=1000, settled=0))
    result = run(job, kb, fidelity="simulate", seed=2, hyper=Hyper(tau=1000, simulated_patience=20, top_k=3))
    assert result.confirmed is not None
    searched = [e for e in events_of(kb, result.session, ExperimentEnded) if e.purpose == "search"]
    assert len(searched) <= 4


def test_best_of_a_job_is_of_that_objective_cluster_and_space(tmp_path):
    from autoscout.deploy.recommendation import best_of_job

    kb, path = tmp_path / "kb.duckdb", replay_job(tmp_path)
    job = load_job(path)
    run(path, kb)
    other = path.with_name("memory.toml")
    other.write_text(path.read_text().replace('minimize = "step_time_s"', 'minimize = "peak_memory_gib"'))
    run(other, kb, seed=9)
    found = best_of_job(kb, job)
    assert found.metric == "step_time_s"
    assert found.default is not None
    assert found.best.value <= 1.05 * found.default.value
    four = path.with_name("four.toml")
    four.write_text(path.read_text().replace("count = 2", "count = 4"))
    with pytest.raises(
        AutoscoutError, match="measurements of smallest-cpu are known, but none applies to this cluster"
    ):
        best_of_job(kb, load_job(four))


def test_what_is_carried_over_and_finds_no_room_is_named(tmp_path):
    """It was "output: No space left on device". A limit on the size of files stands for the full disk."""
    kb, job = tmp_path / "kb.duckdb", replay_job(tmp_path)
    run(job, kb)
    script = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from pathlib import Path
from autoscout.tuning import session
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.loop import Stop
from kb.records import AutoscoutError
job, real = load_job({str(job)!r}), session.warm.gather
def gather(*args, **more):
    found = real(*args, **more)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    return found
session.warm.gather = gather
try:
    session.tune(job, Path({str(kb)!r}), session.SessionOptions(), lambda e: None, print, Stop())
except AutoscoutError as error:
    print("SAID", error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=1800)
    assert "carried.json: the file cannot be written (File too large); free some space" in done.stdout, done.stderr
