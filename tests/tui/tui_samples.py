"""Journals for the screens: a session with every kind of event, and states that operators meet."""

from pathlib import Path

import msgspec

from kb import journal as j
from kb.records import (
    Budget,
    Cluster,
    Configuration,
    Job,
    Measurement,
    Model,
    Node,
    Objective,
    Status,
    Traffic,
)
from kb.within_events import Part, ValueBelief
from tui.app import SessionApp
from tui.session.follow import Follower

JOB = Job(
    name="gpt",
    target="megatron",
    model=Model(layers=8, hidden=64, heads=4, vocab=256),
    traffic=Traffic(seq_len=64, global_batch=16),
    cluster=Cluster(nodes=[Node(device="a100", count=8)]),
    objective=Objective(minimize="step_time_s", constraints=["peak_memory_gib <= 78"]),
    budget=Budget(profiles=20, wall="20m"),
)
START = 1_700_000_000.0
ORDERINGS = [["pp", "tp", "ar"], ["tp", "ar", "pp"], ["ar", "pp", "tp"], ["ar", "tp", "pp"]]


def configuration(pp: int = 1, tp: int = 1, mbs: int = 1, ar: str = "none") -> Configuration:
    return Configuration({"pp": pp, "tp": tp, "ar": ar, "mbs": mbs})


def recording(folder: Path, events: list[j.AnyEvent]) -> SessionApp:
    """The screens of a session that has these events."""
    journal = folder / "journal.jsonl"
    journal.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return SessionApp(Follower(journal), folder / "kb.duckdb")


def name(c: Configuration) -> str:
    return "_".join(f"{k}{v}" for k, v in c.knobs.items())


def measured(
    c: Configuration, value: float, status: Status = "ok", memory: float = 40.0, evidence: str = ""
) -> Measurement:
    metrics = {"step_time_s": value, "peak_memory_gib": memory} if status == "ok" else {}
    return Measurement(
        configuration=c,
        name=name(c),
        context="c0",
        status=status,
        metrics=metrics,
        iterations_s=[value, value] if status == "ok" else [],
        evidence=evidence,
        cost_s=10.0,
        device_s=80.0,
    )


def started() -> j.SessionStarted:
    return j.SessionStarted(
        session="gpt-1",
        job=JOB,
        context="c0",
        strategy="autoscout",
        seed=0,
        fidelity="adaptive",
        warm_start="auto",
        hyper={},
        environment={"torch": "2.13.0", "device": "A100"},
        kb_mark=0,
        default=configuration(tp=2),
        orderings=[],
        at=START,
    )


def decided(step: int, arm: str, c: Configuration, at: float, phase: str = "search", **values: float) -> j.Decided:
    why = "the reference, to compare with" if arm == "DEFAULT" else "tree search"
    coordinates = {"mbs": [1, 2]} if arm == "DENSE" else {}
    return j.Decided(
        step=step,
        phase=phase,
        arm=arm,
        configurations=[c],
        names=[name(c)],
        why=why,
        values=values,
        coordinates=coordinates,
        at=at,
    )


def experiment(number: int, m: Measurement, at: float, purpose: str = "search") -> list[j.AnyEvent]:
    return [
        j.ExperimentStarted(
            number=number,
            purpose=purpose,
            configuration=m.configuration,
            name=m.name,
            folder=f"experiments/{number:04d}",
            at=at,
        ),
        j.ExperimentEnded(number=number, purpose=purpose, measurement=m, at=at + 10),
    ]


def session() -> list[j.AnyEvent]:
    """Twelve experiments, predictions, three checks, the switch, a failure of each kind, and the verdict."""
    default = configuration(tp=2)
    events: list[j.AnyEvent] = [started(), decided(1, "DEFAULT", default, START, "default")]
    events += experiment(1, measured(default, 1.0), START + 1)
    events.append(j.BestFound(configuration=default, name=name(default), value=1.0, experiments=1, at=START + 11))
    for number, kept in ((0, [0, 2]), (1, [2])):
        rewards = [0.51, 0.42, 0.55, 0.31]
        events.append(j.TournamentRanked(round=number, orderings=ORDERINGS, rewards=rewards, kept=kept, at=START + 12))
    answer = measured(configuration(pp=8, mbs=2), 1.4)
    events.append(j.Answered(measurement=answer, measured_by="gpt-0", at=START + 12))
    tried = [
        measured(configuration(pp=2), 0.9),
        measured(configuration(pp=4), 0.0, "oom", evidence="rank 3 ran out of memory: 79.1 of 80 GiB"),
        measured(configuration(pp=2, mbs=2), 0.8),
        measured(configuration(pp=2, mbs=4), 0.7, memory=79.0),
        measured(configuration(pp=2, tp=2, mbs=2), 0.75),
        measured(configuration(pp=1, tp=4), 0.0, "error", evidence="NCCL error: unhandled system error"),
        measured(configuration(pp=1, tp=4, ar="full"), 1.2),
        measured(configuration(pp=2, tp=2, mbs=2, ar="selective"), 0.72),
    ]
    best = 1.0
    for i, m in enumerate(tried):
        at = START + 20 + 15 * i
        arm = "SPARSE" if i % 3 else "DENSE"
        events.append(decided(i + 2, arm, m.configuration, at, ucb_SPARSE=0.3 - 0.02 * i, ucb_DENSE=0.2 + 0.01 * i))
        if i in (2, 4, 6):
            predicted = m.metrics.get("step_time_s", 1.0) * (1.05 if i < 6 else 1.4)
            c = m.configuration
            events.append(
                j.Simulated(configuration=c, name=name(c), predicted=predicted, members={"roofline": predicted}, at=at)
            )
            weights = {"3D-Parallelism": 0.4, "analytic": 0.6}
            mape = 0.05 if i < 6 else 0.22
            value = m.metrics.get("step_time_s")
            events.append(
                j.Checked(
                    step=i,
                    name=m.name,
                    predicted=predicted,
                    measured=value,
                    mape=mape,
                    epsilon=0.15,
                    weights=weights,
                    members={"analytic": predicted, "3D-Parallelism": 1.1 * predicted},
                    at=at,
                )
            )
        events += experiment(i + 2, m, at + 1)
        value = m.metrics.get("step_time_s")
        if value and m.metrics["peak_memory_gib"] <= 78 and value < best:
            best = value
            events.append(
                j.BestFound(configuration=m.configuration, name=m.name, value=value, experiments=i + 2, at=at + 11)
            )
        events.append(
            j.Rewarded(
                step=i + 2,
                costs=[1.0, 0.9, None, 0.8] if i < 7 else [0.8, 0.75, 0.78, 0.72],
                delta_sparse=0.05,
                delta_dense=0.08,
                interaction=0.01,
                errors=[0.0, 0.0, 0.04, 0.0],
                arms={"SPARSE": [i, 0.04], "DENSE": [1 + i // 3, 0.06]},
                at=at + 12,
            )
        )
    events.append(
        j.FidelitySwitched(step=9, to="measured", why="the simulators err by 22 %, more than ε = 15 %", at=START + 140)
    )
    return events


def ended() -> list[j.AnyEvent]:
    """The session to its end: the finalists re-measured, the verdict."""
    winner = configuration(pp=2, tp=2, mbs=2, ar="selective")
    events = [*session(), j.SearchEnded(reason="budget", at=START + 150)]
    for i in range(3):
        for c, value in ((winner, 0.72 + 0.01 * i), (configuration(tp=2), 1.0 - 0.01 * i)):
            events += experiment(10 + len(events), measured(c, value), START + 151 + 20 * i, "confirm")
    verdict = j.Confirmed(
        winner=winner,
        name=name(winner),
        value=0.73,
        default_name=name(configuration(tp=2)),
        default_value=0.99,
        gain=1.356,
        low=1.31,
        high=1.41,
        pairs=3,
        at=START + 215,
    )
    over = j.SessionEnded(reason="budget", experiments=15, engine_ms_mean=4.0, engine_ms_max=11.0, at=START + 216)
    return [*events, verdict, over]


def gated() -> list[j.AnyEvent]:
    """Side B of a gate, which was slower."""
    told: list[j.AnyEvent] = [started()]
    for number in range(1, 5):
        told += experiment(number, measured(configuration(), 1.08 + number / 1000), START + 60 * number, "confirm")
    parts = [
        Part(name="step_time_s", a=1.0, b=1.082, ratio=1.082, low=1.074, high=1.09),
        Part(name="optimizer_s", a=0.1, b=0.18, ratio=1.8, low=1.75, high=1.85),
        Part(name="start_s", a=20.0, b=21.0, ratio=1.05, low=0.9, high=1.2),
        Part(name="peak_memory_gib", a=40.0, b=40.0, ratio=1.0),
    ]
    verdict = j.Gated(
        a="commit=HEAD~1",
        b="commit=HEAD",
        a_session="gpt-gate-1",
        verdict="worse",
        margin=0.01,
        sentence="B is slower than A by +8.2 % (+7.4 % to +9.0 %), and 1 % is allowed",
        ratio=1.082,
        low=1.074,
        high=1.09,
        p_worse=0.999,
        pairs=4,
        parts=parts,
        checked=True,
        at=START + 300,
    )
    ended = j.SessionEnded(reason="profiled", experiments=5, engine_ms_mean=4, engine_ms_max=9, at=START + 301)
    return [*told, verdict, ended]


def of_rl() -> list[j.AnyEvent]:
    """A session of an RL job, whose runs have phases."""
    job = msgspec.structs.replace(JOB, name="grpo", task="rl", objective=Objective(maximize="samples_per_s"))
    told: list[j.AnyEvent] = [msgspec.structs.replace(started(), job=job)]
    for number, (c, rollout, update) in enumerate([(configuration(tp=2), 2.5, 1.8), (configuration(mbs=4), 2.4, 0.7)]):
        phases = {"rollout_s": rollout, "logprobs_s": 0.3, "wait_s": 0.27, "update_s": update, "idle_share": 0.05}
        whole = rollout + update + 0.57
        metrics = {"samples_per_s": 16 / whole, "step_time_s": whole, **phases}
        m = msgspec.structs.replace(measured(c, whole), metrics=metrics)
        told += experiment(number + 1, m, START + 20 * number)
        best = {"configuration": c, "name": m.name, "value": 16 / whole, "experiments": number + 1}
        told.append(j.BestFound(**best, at=START + 20 * number + 11))
    return told


def running() -> list[j.AnyEvent]:
    """In the middle of an experiment."""
    c = configuration(pp=4, tp=2, mbs=2)
    return [
        *session(),
        decided(10, "SPARSE", c, START + 145, ucb_SPARSE=0.2, ucb_DENSE=0.3),
        j.ExperimentStarted(
            number=10, purpose="search", configuration=c, name=name(c), folder="experiments/0010", at=START + 146
        ),
    ]


def waiting() -> list[j.AnyEvent]:
    return [*running(), j.Waiting(holder="other-7", pid=4711, at=START + 147)]


def infeasible() -> list[j.AnyEvent]:
    """Everything ran out of memory or over the limit."""
    over = [measured(configuration(pp=2), 0.9, memory=91.0), measured(configuration(pp=4), 0.8, memory=81.4)]
    oom = measured(configuration(), 0.0, "oom", evidence="rank 0 ran out of memory: 79.6 of 80 GiB")
    events: list[j.AnyEvent] = [started()]
    for i, m in enumerate([oom, *over]):
        events.append(decided(i + 1, "MODEL", m.configuration, START + 15 * i))
        events += experiment(i + 1, m, START + 15 * i + 1)
    problem = (
        "no configuration of gpt ran correctly within its constraints (2 ok, 1 oom). The nearest is "
        "pp4_tp1_arnone_mbs1: breaks the constraint peak_memory_gib <= 78: it is 81.4"
    )
    search = j.SearchEnded(reason="budget", at=START + 45)
    over_ = j.SessionEnded(
        reason="failed", experiments=3, engine_ms_mean=4, engine_ms_max=9, problem=problem, exit_code=3, at=START + 46
    )
    return [*events, search, over_]


def failed() -> list[j.AnyEvent]:
    problem = "kb.duckdb: the disk is full; every finished experiment is kept, free some space"
    over = j.SessionEnded(
        reason="failed", experiments=9, engine_ms_mean=4, engine_ms_max=9, problem=problem, exit_code=1, at=START + 150
    )
    return [*session(), over]


def interrupted() -> list[j.AnyEvent]:
    over = j.SessionEnded(reason="interrupted", experiments=9, engine_ms_mean=4, engine_ms_max=9, at=START + 150)
    return [*session(), over]


def paused() -> list[j.AnyEvent]:
    return [*session(), j.Steered(what="pause", values={}, by="test", at=START + 146)]


def believing() -> list[j.AnyEvent]:
    """With what the search believes of long names, what it promised, and what it thinks is left."""
    events: list[j.AnyEvent] = []
    for event in session():
        if isinstance(event, j.Decided) and event.phase == "search":
            gains = {"predicted_gain": 0.05, "gain_SPARSE": 0.05, "gain_DENSE": 0.03, "gain_MODEL": 0.02}
            event = msgspec.structs.replace(event, values={**event.values, **gains})
        events.append(event)
    knobs = {
        name: [
            ValueBelief(value=v, cost=cost, low=cost * 0.9, high=cost * 1.2, runs=runs, measured=n)
            for v, cost, runs, n in values
        ]
        for name, values in {
            "recompute_granularity": [("none", 1.6, 1.0, 4), ("selective", 1.1, 1.0, 2), ("full", 1.0, 1.0, 1)],
            "mbs": [(1, 1.4, 1.0, 3), (2, 1.0, 1.0, 4), (4, 0.98, 0.6, 1), (8, 0.9, 0.1, 0)],
            "tensor_parallel_overlap": [(None, 1.0, 1.0, 6), (True, 1.02, 1.0, 1), (False, 1.01, 1.0, 1)],
            "pp": [(1, 1.05, 1.0, 3), (2, 1.0, 1.0, 5), (4, 1.3, 1.0, 0)],
        }.items()
    }
    told: list[j.AnyEvent] = [
        j.Outlook(step=5, chance=0.6, gain=0.03, ahead=10, at=START + 141),
        j.Outlook(step=9, chance=0.34, gain=0.012, ahead=10, at=START + 142),
        j.Believed(step=9, knobs=knobs, at=START + 142),
    ]
    return [*events, *told]


def two_kinds() -> list[j.AnyEvent]:
    """A pipeline over two kinds of device on two hosts; one A40 is slower than the other."""
    m = msgspec.structs.replace(
        measured(configuration(pp=2), 0.8),
        per_rank={
            "step_time_s": [0.8, 0.8, 0.8, 0.8],
            "alone_s": [0.001, 0.00102, 0.0021, 0.0031],
            "peak_memory_gib": [30.0, 31.0, 20.0, 22.0],
            "power_w": [390.0, 388.0, 280.0, 275.0],
        },
        rank_devices=["n1:a100:0", "n1:a100:1", "n2:a40:0", "n2:a40:1"],
        conditions={"clock_mhz": 1410.0, "power_w": 275.0, "throttled": 0.0},
    )
    spoiled = msgspec.structs.replace(m, status="infrastructure", metrics={}, evidence="n2 was lost")
    return [
        msgspec.structs.replace(started(), host="n1"),
        *experiment(1, m, START),
        *experiment(2, spoiled, START + 20),
        *experiment(3, msgspec.structs.replace(m, metrics={"step_time_s": 0.79}), START + 40),
    ]


def later(events: list[j.AnyEvent], by: float) -> list[j.AnyEvent]:
    """The same, `by` seconds later."""
    return [msgspec.structs.replace(event, at=event.at + by) for event in events]
