"""`gate` and `bisect`, on a script that prints times instead of taking them: the noise of a run is its number's."""

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
import verbs

from autoscout.targets.jobs import load_job
from autoscout.tuning import bisection
from autoscout.tuning.between import BisectPoint
from autoscout.tuning.loop import Stop

SCRIPT = """
import json, random, sys
settings = json.load(open(sys.argv[1])) if len(sys.argv) > 1 else {}
slower = SLOWER * settings.get("slower", 1.0) * settings.get("more", 1.0)
with open("RUNS", "a") as runs:
    runs.write(".")
    noise = random.Random(runs.tell())
if settings.get("broken"): sys.exit("no such option")
for i in range(5):
    print(f"loss {settings.get('loss', 1.0) / (i + 1):.4f} | {100 * slower * (1 + noise.gauss(0, 0.002)):.4f} ms")
"""
JOB = """
name = "printed"
target = "command"
[cluster]
nodes = [{ device = "cpu", count = 1 }]
[objective]
minimize = "step_time_s"
[launch]
iterations = 4
command = "python3 -S -E train.py a.json"
[launch.metrics]
step_time_ms = 'loss [\\d.]+ \\| ([\\d.]+) ms'
loss = 'loss ([\\d.]+)'
[space]
knob = [{ name = "mbs", values = [1, 2], sets = "--mbs" }]
"""


@pytest.fixture
def folder(tmp_path, tmp_path_factory):
    runs = tmp_path_factory.mktemp("counted") / "runs"

    def git(*words):
        who = ["-c", "user.name=n", "-c", "user.email=n@example.com"]
        subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "a.json").write_text("{}")
    for number, slower in enumerate(["1.0", "1.0", "1.08", "1.08"]):
        script = SCRIPT.replace("SLOWER", slower).replace("RUNS", str(runs)) + f"# {number}\n"
        (tmp_path / "train.py").write_text(script)
        git("add", "-A")
        git("commit", "-qm", f"change {number}")
    return tmp_path


def run(folder, *words):
    return verbs.run(*words, "--job", folder / "job.toml", "--kb", folder / "kb.duckdb")


def test_a_slower_commit_does_not_pass_and_says_so_to_a_pull_request(folder):
    reports = ["--junit", folder / "out.xml", "--markdown", folder / "out.md"]
    done = run(folder, "gate", "commit=HEAD~3", "commit=HEAD", *reports)
    assert done.returncode == 1, done.stderr
    said = re.search(r"B is slower than A by \+(\S+) %", done.stdout)
    assert said is not None, done.stdout
    assert float(said[1]) == pytest.approx(8, abs=0.5)
    case = xml.fromstring((folder / "out.xml").read_text()).find("testcase")
    assert case is not None
    assert case.find("failure") is not None
    assert "| step_time_s | 0." in (folder / "out.md").read_text()
    kept = verbs.run("sql", "SELECT verdict, pairs FROM gates", "--format", "json", "--kb", folder / "kb.duckdb")
    assert json.loads(kept.stdout)[0]["verdict"] == "worse"


def test_an_equal_one_passes_and_its_checkout_is_gone(folder):
    done = run(folder, "gate", "commit=HEAD~1", "commit=HEAD", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"], found["checked"]) == (0, "no worse", True)
    trees = subprocess.run(["git", "-C", folder, "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(trees.stdout.splitlines()) == 1


def test_a_side_that_computes_something_else_or_does_not_start_is_worse(folder):
    (folder / "b.json").write_text('{"loss": 2.0}')
    done = run(folder, "gate", "", f"file={folder}/a.json:{folder}/b.json")
    assert done.returncode == 1
    assert "computes something else: losses deviate" in done.stdout
    (folder / "b.json").write_text('{"broken": true}')
    done = run(folder, "gate", "", f"file={folder}/a.json:{folder}/b.json")
    assert done.returncode == 1
    assert "does not run" in done.stdout
    assert "were not compared" not in done.stdout
    turned = run(folder, "gate", f"file={folder}/a.json:{folder}/b.json", "")
    assert turned.returncode == 1
    assert "so B cannot be compared with it" in turned.stderr


def test_a_difference_at_the_margin_is_left_undecided(folder):
    (folder / "b.json").write_text('{"slower": 1.01}')
    done = run(folder, "gate", "", f"file={folder}/a.json:{folder}/b.json", "--pairs", "4")
    assert done.returncode == 4
    assert "undecided after 4 pairs" in done.stdout


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("commit=nowhere", "", "git rev-parse fails"),
        ("python=/none/python", "", "no Python interpreter can be started"),
        ("file=x.json:y.json", "", "does not name this file"),
        ("", "packaging==0.0.1", "cannot be installed here"),
    ],
)
def test_what_is_no_side_is_said_in_one_sentence(folder, a, b, said):
    done = run(folder, "gate", a, b)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_different_work_is_not_compared(folder):
    other = folder / "other.toml"
    other.write_text(JOB.replace('name = "printed"', 'name = "another"'))
    done = verbs.run("gate", folder / "job.toml", other, "--kb", folder / "kb.duckdb")
    assert done.returncode == 2
    assert "do different work" in done.stderr


def test_the_examples_for_pull_requests_run_as_they_stand(folder, tmp_path):
    page = Path("docs/ci.md").read_text()
    gitlab = re.search(r"  script:\n((?:    - .*\n)+)", page)
    assert gitlab is not None
    replay = re.search(r"`(autoscout gate smallest.*)`", page)
    assert replay is not None
    examples = [re.findall(r"- run: (.*)", page), re.findall(r"- (.*)", gitlab[1]), [replay[1]]]
    for words in (["checkout", "-qb", "pull"], ["branch", "-qf", "main", "HEAD~1"]):
        subprocess.run(["git", "-C", folder, *words], check=True)
    paths = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    ours = {
        "CI_DEFAULT_BRANCH": "main",
        "GITHUB_STEP_SUMMARY": "summary.md",
        "AUTOSCOUT_KB": str(tmp_path / "kb.duckdb"),
        "TMPDIR": str(tmp_path),
    }
    for number, steps in enumerate(examples):
        clone = tmp_path / f"clone-{number}"
        subprocess.run(["git", "clone", "-q", "-b", "pull", folder, clone], check=True)
        script = "set -e\n" + "\n".join(steps)
        done = subprocess.run(
            ["bash", "-c", script], cwd=clone, env={**os.environ, "PATH": paths, **ours}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert xml.fromstring((clone / "gate.xml").read_text()).find("testcase/failure") is None
    assert "no worse" in (tmp_path / "clone-0" / "summary.md").read_text()


def test_other_hardware_is_not_compared(folder):
    other = folder / "other.toml"
    other.write_text(JOB.replace("count = 1", "count = 2"))
    done = verbs.run("gate", folder / "job.toml", other, "--kb", folder / "kb.duckdb")
    assert done.returncode == 2
    assert "runs on 1×cpu" in done.stderr


def test_sides_without_losses_and_changes_that_no_side_has_are_said(folder):
    (folder / "job.toml").write_text(JOB.replace("loss = 'loss ([\\d.]+)'", ""))
    done = run(folder, "gate", "commit=HEAD", "commit=HEAD", "--pairs", "4")
    assert "losses and answers were not compared, because A or B reports none" in done.stdout
    assert "neither side includes the uncommitted changes of 1 file" in done.stderr
    for metric in ("start_s", "peak_rss_gib"):
        assert metric in done.stdout


def test_the_commit_that_made_it_slower_is_found(folder):
    done = run(folder, "bisect", "HEAD~3", "HEAD", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert found["suspects"][0]["label"].endswith("change 2")
    assert found["slower"] == pytest.approx(1.08, rel=0.01)


def test_a_bisection_keeps_no_more_checkouts_than_it_is_going_to_use(folder, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(bisection, "_OPEN", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("own")))  # a lock on the machine of its own
    points = [BisectPoint(f"HEAD~{back}", f"commit=HEAD~{back}") for back in (3, 1)]
    made = bisection.OpenPoints(points, load_job(folder / "job.toml"), folder / "kb.duckdb", print, Stop(), "")
    counts = []
    for step in (lambda: made.run(0), lambda: made.run(1), lambda: made.run(0), made.close):
        step()
        trees = subprocess.run(["git", "-C", folder, "worktree", "list"], capture_output=True, text=True, check=True)
        counts.append(len(trees.stdout.splitlines()) - 1)
    assert counts == [1, 1, 1, 0]


def test_the_line_of_a_settings_file_is_found_although_one_step_does_not_run(folder):
    (folder / "old.json").write_text('{\n"a": 1,\n"b": 1,\n"slower": 1.0,\n"more": 1.0,\n"c": 1\n}\n')
    (folder / "a.json").write_text('{\n"a": 2,\n"b": 1,\n"slower": 1.1,\n"more": 1.0,\n"c": 2\n}\n')
    done = run(folder, "bisect", folder / "old.json", folder / "a.json", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert found["suspects"][0]["label"] == 'line 4: "slower": 1.0, → "slower": 1.1,'


def test_a_session_alone_is_its_reference_against_its_winner(folder):
    tuned = verbs.run(
        "tune", folder / "job.toml", "--profiles", "2", "--no-tui", "--json", "--kb", folder / "kb.duckdb"
    )
    session = json.loads(tuned.stdout)["session"]["session"]
    found = json.loads(verbs.run("gate", session, "--json", "--pairs", "4", "--kb", folder / "kb.duckdb").stdout)
    assert (found["a"], found["b"], found["margin"]) == (f"the reference of {session}", session, 0.0)
    missing = verbs.run("gate", "nobody", "--kb", folder / "kb.duckdb")
    assert missing.returncode == 2
    assert "there is no session nobody" in missing.stderr
