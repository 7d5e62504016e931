"""A floor under what may cost quality: `[guard] command`."""

import sys
from pathlib import Path

import pytest
import verbs

from autoscout.targets.jobs import load_job
from kb import journal as journals
from kb import store
from kb.journal import ExperimentEnded
from kb.records import AutoscoutError

JOB = """name = "own"
target = "command"
cluster = {{ nodes = [{{ device = "cpu", count = 1 }}] }}
objective = {{ minimize = "step_time_s" }}
budget = {{ profiles = 8 }}
[launch]
path = "{folder}"
command = "{python} serve.py --quantization none"
metrics = {{ step_time_s = 'step ([\\d.]+)' }}
repeats = 1
[[space.knob]]
name = "quantization"
values = ["none", "int8", "int4", "broken"]
sets = "--quantization"
{guard}
"""
GUARD = """[guard]
command = "{python} check.py {{quantization}}"
pattern = 'acc = ([\\d.]+)'
at_least = 0.6
"""
SERVE = """import sys
fast = {"none": 1.0, "int8": 0.8, "int4": 0.4, "broken": 0.3}[sys.argv[sys.argv.index("--quantization") + 1]]
for i in range(8):
    print("step", fast)
"""
CHECK = """import sys
open("asked", "a").write(sys.argv[1] + " ")
if sys.argv[1] == "broken":
    sys.exit("no such format")
print("acc =", {"int8": 0.65, "int4": 0.31}[sys.argv[1]])
"""


def written(folder: Path, guard: str) -> Path:
    (folder / "serve.py").write_text(SERVE)
    (folder / "check.py").write_text(CHECK)
    text = JOB.format(folder=folder, python=sys.executable, guard=guard.format(python=sys.executable))
    (folder / "job.toml").write_text(text)
    return folder / "job.toml"


def test_what_falls_below_the_floor_is_not_recommended(tmp_path: Path) -> None:
    kb, job = tmp_path / "kb.duckdb", written(tmp_path, GUARD)
    done = verbs.run("tune", "--no-tui", "--kb", kb, job, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    folder = next(store.sessions_folder(kb).iterdir())
    ended = [e.measurement for e in journals.events(folder / "journal.jsonl") if isinstance(e, ExperimentEnded)]
    came = {m.configuration.knobs["quantization"]: m for m in ended}
    assert {name: m.status for name, m in came.items()} == {
        "none": "ok",
        "int8": "ok",
        "int4": "wrong",
        "broken": "error",
    }
    assert came["int8"].metrics["quality"] == 0.65
    assert "quality" not in came["none"].metrics, "as the reference: nothing to check"
    assert came["int4"].evidence == "guard.command reports 0.31, but at least 0.6 is required"
    assert "printed no number that matches guard.pattern, and ended with exit code 1" in came["broken"].evidence
    assert sorted((tmp_path / "asked").read_text().split()) == ["broken", "int4", "int8"], "once each"
    told = verbs.run("best", "--json", "--kb", kb, job)
    assert '"quantization": "int8"' in told.stdout, told.stdout + told.stderr


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ("[guard]\nat_least = 0.6", "guard needs a command that prints a number"),
        ("[guard]\ncommand = 'x'\npattern = 'acc'\nat_least = 0.6", r"guard.pattern needs a group for the number"),
        ("[guard]\ncommand = 'x'\npattern = '(.'\nat_least = 0.6", r"guard.pattern: '\(\.' is not a valid pattern"),
        ("[guard]\ncommand = 'x'\npattern = '(.)'", "set guard.at_least or guard.at_most"),
    ],
    ids=["command", "group", "pattern", "limit"],
)
def test_a_guard_that_cannot_work_is_refused(tmp_path: Path, guard: str, said: str) -> None:
    with pytest.raises(AutoscoutError, match=said):
        load_job(written(tmp_path, guard.replace("{", "{{").replace("}", "}}")))
