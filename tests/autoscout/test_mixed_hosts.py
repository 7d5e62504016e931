"""A mixed cluster's hosts: which are used, and a session from check to launch on simulated devices."""

import contextlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_mixed import paper, seconds

from autoscout.running.cluster.choosing import chooser
from autoscout.running.cluster.devices import misplaced, used_nodes
from autoscout.running.roster import Roster
from autoscout.targets.jobs import JobSpace
from autoscout.tuning.lanes import hosts_of
from kb.journal import ExperimentEnded, Journal, SessionStarted
from kb.records import AutoscoutError, Configuration, Job, Measurement, Node
from tui.cli import cli

SEVERAL = [Node("a100", 8), Node("a40", 4), Node("a100", 8)]


def on_hosts(tmp_path, lines: str, nodes: Sequence[Node] = SEVERAL) -> Job:
    path = tmp_path / "hostfile"
    path.write_text(lines)
    return paper(nodes=nodes, hosts=str(path))


def test_nodes_are_used_whole_one_kind_after_the_other():
    job = paper(nodes=SEVERAL)
    assert JobSpace.of_job(job).knob["a100"].values == (0, 8, 16)
    for a100, a40 in itertools.product((0, 8, 16), (0, 4)):
        used = used_nodes(job, Configuration({"a100": a100, "a40": a40}))
        assert [n.device for n in used] == ["a100"] * (a100 // 8) + ["a40"] * (a40 // 4)


def test_an_experiment_runs_on_the_hosts_of_its_kinds(tmp_path):
    job = on_hosts(tmp_path, "fast slots=8\nslow slots=4\nother slots=8\n")
    roster = Roster(chooser(job))
    for a100, a40, hosts in (
        (0, 4, ["slow"]),
        (8, 4, ["fast", "slow"]),
        (16, 0, ["fast", "other"]),
        (16, 4, ["fast", "other", "slow"]),
    ):
        nodes = used_nodes(job, Configuration({"a100": a100, "a40": a40}))
        roster.nodes = nodes
        placed = roster.chosen(sum(node.count for node in nodes))
        assert [host.name for host in placed.hosts] == hosts
        assert placed.ranks == a100 + a40
    assert [host.devices[0].kind for host in hosts_of(job)] == ["a100", "a40", "a100"]


def test_hosts_that_cannot_be_told_apart_are_refused(tmp_path):
    job = on_hosts(tmp_path, "a slots=8\nb slots=8\nc slots=8\nd slots=8\n")
    with pytest.raises(AutoscoutError, match=r"cannot find out which of the 4 hosts .* have which kind") as error:
        hosts_of(job)
    assert error.value.exit_code == 2


def test_hosts_in_another_order_than_the_jobs_nodes_are_seen_by_their_devices():
    job = paper()
    assert misplaced(job, ["NVIDIA A100-SXM4-80GB"] * 8 + ["NVIDIA A40"] * 4) == ""
    said = misplaced(job, ["NVIDIA A40"] * 4 + ["NVIDIA A100-SXM4-80GB"] * 8)
    assert "a host has NVIDIA A40, but the job's node at the same position has a100" in said


def simulated_devices(tmp_path: Path, text: str) -> Path:
    """A job whose launcher answers with what is predicted, as a journal of devices that nobody here has."""
    job_file, recorded = tmp_path / "mixed.toml", tmp_path / "recorded.jsonl"
    job_file.write_text(text)
    space = JobSpace.load(job_file)
    with contextlib.closing(Journal(recorded)) as journal:
        journal.append(
            SessionStarted(
                session="recorded",
                job=space.job,
                context="",
                strategy="autoscout",
                seed=0,
                fidelity="profile",
                warm_start="off",
                hyper={},
                environment={"device": "simulated"},
                kb_mark=0,
                default=space.reference,
                orderings=[],
            )
        )
        for number, found in enumerate(space.configurations()):
            step = seconds(space, found)
            measurement = Measurement(
                configuration=found, name=space.name(found), context="", status="ok", cost_s=1.0,
                metrics={"step_time_s": step, "peak_memory_gib": 40.0}, iterations_s=[step] * 5,
                losses=[11.0] * 5, grad_norms=[1.0] * 3,
            )  # fmt: skip
            journal.append(ExperimentEnded(number=number, purpose="search", measurement=measurement), sync=False)
    job_file.write_text(text.replace("[launch]", f'[launch]\nlauncher = "replay"\nrecorded = "{recorded}"'))
    return job_file


def test_a_mixed_job_goes_from_check_to_a_launch_of_what_won(tmp_path):
    limits = """
[space]
fix = { tp = 1, cp = 1, mbs = 1, distopt = true, overlap_grad = true, overlap_param = true, ar = "none" }
limit = { pp = [1, 3], a100 = [8], a40_layers = [0, 2, 4, 6], ddp_bucket = [128] }
"""
    text = Path("fixtures/jobs/llama-3.1-nemotron-nano-8b.toml").read_text().replace("profiles = 60", "profiles = 20")
    job_file = str(simulated_devices(tmp_path, text + limits))
    store = ["--kb", str(tmp_path / "kb.duckdb")]

    def said(*words: str) -> str:
        found = CliRunner().invoke(cli, [*words, *store])
        assert found.exit_code == 0, found.output
        return found.output

    assert "a40_layers" in said("space", job_file)
    assert "memory" in CliRunner().invoke(cli, ["check", job_file, *store]).output
    said("tune", job_file, "--no-tui", "--seed", "0")
    assert "a40_layers2" in said("predict", job_file, "a40=4", "pp=3", "a40_layers=2")
    best = json.loads(said("best", job_file, "--json"))
    assert best["best"]["configuration"]["a40_layers"] == 2, "the shortest of those that were recorded"
    (session,) = [path.name for path in (tmp_path / "sessions").iterdir()]
    script = said("export", session, "--format", "slurm")
    asked = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert [line for line in asked if "gpus-per-node" in line or "hetjob" in line] == [
        "#SBATCH --gpus-per-node=8", "#SBATCH hetjob", "#SBATCH --gpus-per-node=4",
    ]  # fmt: skip
    layout = f"E{'t' * 15}|{'t' * 15}|ttL"
    for form in ("command", "slurm", "hostfile", "jobset", "ray"):
        assert layout in said("export", session, "--format", form)
