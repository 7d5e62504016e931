"""Checks whether a session reaches the same result if a colleague's lake has wrong measurements.

    python tests/tools/poisoned_lake.py [--seeds 20] [--word hint|answer] [--json]

The landscape is the measured one of fixtures/jobs/smallest-cpu-replay.toml. According to the lake, of its 15 best
configurations five are four times as slow as in truth, five run out of memory and five have a wrong loss, in the same
context as the session. `--word`: the level of trust in the author. A seed passes if the verdict is the same as without
the lake and the recommended configuration is at most 2 % slower."""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job.load import with_budget
from autoscout.targets.jobs import load_job
from autoscout.tuning import session
from autoscout.tuning.loop import Stop
from kb import journal, store
from kb.journal import Confirmed, ExperimentEnded, SessionStarted
from kb.records import Job, Measurement
from kb.sharing import author_trust, lake, signatures

_JOB = Path(__file__).parents[2] / "fixtures" / "jobs" / "smallest-cpu-replay.toml"
_RECORDED = Path(__file__).parents[2] / "fixtures" / "recorded" / "smallest-cpu.jsonl"
_WORST, _SLOWER = 15, 4.0
_BUDGET = 25  # experiments


def true_times() -> dict[str, Measurement]:
    """The successful recorded runs, by configuration."""
    found = (e.measurement for e in journal.events(_RECORDED) if isinstance(e, ExperimentEnded))
    return {m.configuration.id: m for m in found if m.status == "ok"}


def verdict(job: Job, kb: Path, seed: int) -> tuple[Confirmed, SessionStarted]:
    events: list[Any] = []
    session.tune(job, kb, session.SessionOptions(seed=seed), events.append, lambda text: None, Stop())
    [confirmed] = [e for e in events if isinstance(e, Confirmed)]
    return confirmed, next(e for e in events if isinstance(e, SessionStarted))


def poison(kb: Path, like: SessionStarted) -> None:
    """Writes a knowledge base in which the best configurations appear to be the worst."""
    best = sorted(true_times().values(), key=lambda m: m.metrics["step_time_s"])[:_WORST]
    lies = []
    for i, m in enumerate(best):
        slow = {name: value * _SLOWER if name.startswith("step_time") else value for name, value in m.metrics.items()}
        lie = msgspec.structs.replace(m, context=like.context, environment=like.environment, iterations_s=[])
        match i % 3:
            case 0:
                lie = msgspec.structs.replace(lie, metrics=slow)
            case 1:
                lie = msgspec.structs.replace(lie, metrics={}, status="oom", evidence="out of memory")
            case _:
                lie = msgspec.structs.replace(lie, status="wrong", evidence="its losses differ")
        lies.append(ExperimentEnded(number=i + 1, purpose="search", measurement=lie))
    path = store.session_folder(kb, "eve-1") / "journal.jsonl"
    log = journal.Journal(path)
    log.append(msgspec.structs.replace(like, session="eve-1"), *lies)
    log.close()
    store.ingest(kb, path)


def one(folder: Path, seed: int, word: str) -> dict[str, Any]:
    job, times = with_budget(load_job(_JOB), _BUDGET, None), true_times()
    clean, started = verdict(job, folder / "clean" / "kb.duckdb", seed)
    key, ours = folder / "key", folder / "ours" / "kb.duckdb"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    poison(folder / "eve" / "kb.duckdb", started)
    lake.push(folder / "eve" / "kb.duckdb", folder / "lake", key)
    author_trust.decide(ours, "eve", word, signatures.public_key(key.with_suffix(".pub")))
    assert lake.pull(ours, folder / "lake").measurements == _WORST
    found, _ = verdict(job, ours, seed)
    value = {name: times[c.winner.id].metrics["step_time_s"] for name, c in (("clean", clean), ("poisoned", found))}
    return {
        "seed": seed,
        "clean": clean.verdict,
        "poisoned": found.verdict,
        "gain": [clean.gain, found.gain],
        "slower": value["poisoned"] / value["clean"] - 1,
        "holds": clean.verdict == found.verdict and value["poisoned"] <= 1.02 * value["clean"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--word", choices=["hint", "answer"], default="hint")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(one(Path(folder), seed, options.word))
        if not options.json:
            r = rows[-1]
            gains = " and ".join("–" if g is None else f"{g:.2f}×" for g in r["gain"])
            print(f"seed {seed:2}: {r['clean']} / {r['poisoned']}, {gains}, {100 * r['slower']:+.1f} %", flush=True)
    print(json.dumps(rows) if options.json else f"{sum(r['holds'] for r in rows)} of {len(rows)} hold")


if __name__ == "__main__":
    main()
