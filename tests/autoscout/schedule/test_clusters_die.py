"""Sessions on a real Slurm and a real Ray, one of whose nodes dies in the middle of an experiment; and batch jobs."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from kb import journal, store
from kb.journal import Confirmed, ExperimentEnded, ExperimentStarted
from kb.records import AutoscoutError
from tui.cli import cli

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import namespace_hosts
import ray_cluster
import slurm_cluster

SLURM = pytest.mark.skipif(bool(slurm_cluster.missing()), reason=f"a Slurm: {slurm_cluster.missing()}")
NO_RAY = namespace_hosts.missing() or ("" if importlib.util.find_spec("ray") else "needs `pip install ray`")
RAY = pytest.mark.skipif(bool(NO_RAY), reason=f"a Ray of two hosts: {NO_RAY}")
AUTOSCOUT = str(Path(sys.executable).parent / "autoscout")
SCRIPT = """import sys, time
a, node, nodes, head, ranks = sys.argv[1:]
for i in range(6):
    time.sleep(0.3)
    print(f"step time (ms): {10 * (1 + abs(int(a) - 4))}", flush=True)
"""
JOB = """
name = "dies"
target = "command"
[cluster]
nodes = [{{ device = "cpu", count = 1 }}, {{ device = "cpu", count = 1 }}]
hosts = "{hosts}"
[objective]
minimize = "step_time_s"
[budget]
profiles = 4
[launch]
command = "{python} -I -S work.py {{a}} {{node}} {{nodes}} {{head}} {{ranks}}"
path = "{folder}"
iterations = 6
repeats = 1
end_early = false
[launch.metrics]
step_time_ms = 'step time \\(ms\\): ([\\d.]+)'
[space]
knob = [{{ name = "a", values = [1, 2, 4, 8] }}]
"""


def written(tmp_path: Path, hosts: str) -> Path:
    (tmp_path / "work.py").write_text(SCRIPT)
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(hosts=hosts, python=sys.executable, folder=tmp_path))
    return path


def tuned_by(tmp_path: Path, *words: str) -> list[str]:
    return [AUTOSCOUT, "tune", "--no-tui", "--kb", str(tmp_path / "kb.duckdb"), *words]


def events(tmp_path: Path) -> list[journal.AnyEvent]:
    with contextlib.suppress(StopIteration):
        return journal.events(next((tmp_path / "sessions").glob("*/journal.jsonl")))
    return []


def wait_for(holds: Callable[[], bool], process: subprocess.Popen[str], within_s: float = 1800.0) -> None:
    until = time.monotonic() + within_s
    while not holds():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.1)


@contextlib.contextmanager
def session(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def survived(tmp_path: Path, said: str, dead: str) -> None:
    """The experiment that lost a node ran again on others, and the session came to its end."""
    ended = [e for e in events(tmp_path) if isinstance(e, ExperimentEnded)]
    lost = [e for e in ended if e.measurement.status == "infrastructure"]
    assert lost, said
    assert all(dead in e.placement for e in lost)
    assert dead in lost[0].measurement.evidence
    ran = {e.measurement.configuration.id for e in ended if e.measurement.status == "ok"}
    assert {e.measurement.configuration.id for e in lost} <= ran
    assert len(ran) == 4
    assert any(isinstance(e, Confirmed) for e in events(tmp_path))
    assert all(dead not in e.placement for e in ended[ended.index(lost[-1]) + 1 :])


def second_started(tmp_path: Path) -> bool:
    return sum(isinstance(e, ExperimentStarted) for e in events(tmp_path)) >= 2


@pytest.mark.hosts
@pytest.mark.thorough
@SLURM
def test_a_session_in_an_allocation_survives_a_node(tmp_path):
    path = written(tmp_path, "slurm")
    tune = tuned_by(tmp_path, str(path))
    with (
        slurm_cluster.slurm(3) as cluster,
        session(cluster.command("salloc", "--no-kill", "-N3", "-c1", "--mem=500", *tune)) as process,
    ):
        wait_for(lambda: second_started(tmp_path), process)
        wait_for(lambda: len(cluster.running_on("node2")) > 2, process)
        cluster.kill("node2")
        said = process.communicate(timeout=200)[0]
        assert process.returncode == 0, said
        survived(tmp_path, said, "node2")
        for node in ("node1", "node3"):
            assert len(cluster.running_on(node)) == 1  # its daemon


@pytest.mark.hosts
@pytest.mark.thorough
@SLURM
def test_an_allocation_that_ends_ends_the_session_which_goes_on_in_another(tmp_path):
    path = written(tmp_path, "slurm")
    tune = tuned_by(tmp_path)
    salloc = ["salloc", "-N2", "-c1", "--mem=500"]
    with slurm_cluster.slurm() as cluster:
        with session(cluster.command(*salloc, *tune, str(path))) as process:
            wait_for(lambda: second_started(tmp_path), process)
            cluster.said("scancel", "1")
            said = process.communicate(timeout=100)[0]
            print(said)
            assert "the Slurm allocation has ended; request a new one; continue the session with" in said
            assert process.returncode == 1
        before = events(tmp_path)
        name = next((tmp_path / "sessions").iterdir()).name
        with session(cluster.command(*salloc, *tune, "--resume", name)) as process:
            said = process.communicate(timeout=200)[0]
            assert process.returncode == 0, said
    assert events(tmp_path)[: len(before)] == before
    assert any(isinstance(e, Confirmed) for e in events(tmp_path))


@pytest.mark.hosts
@pytest.mark.thorough
@SLURM
def test_a_batch_job_runs_a_session_and_goes_on_when_its_time_was_up(tmp_path):
    path, kb = written(tmp_path, "slurm"), tmp_path / "kb.duckdb"
    said = CliRunner().invoke(cli, ["tune", str(path), "--as", "slurm", "--seed", "3", "--kb", str(kb)])
    assert said.exit_code == 0, said.output
    script = tmp_path / "run.sh"
    script.write_text(said.output)
    with slurm_cluster.slurm() as cluster:
        inside = f"PATH={Path(AUTOSCOUT).parent}:{os.environ['PATH']}"
        given = cluster.command("env", inside, "sbatch", "--mem=500", f"--output={tmp_path}/out", str(script))
        number = subprocess.run(given, check=True, capture_output=True, text=True).stdout.split()[-1]
        with session(cluster.command("sleep", "200")) as process:
            wait_for(lambda: second_started(tmp_path), process)
            cluster.said("scancel", "--signal=USR1", "--batch", number)
            wait_for(lambda: any(isinstance(e, Confirmed) for e in events(tmp_path)), process)
    names = [folder.name for folder in store.session_folder(kb, "x").parent.iterdir()]
    assert names == [f"dies-{number}"]
    text = (tmp_path / "out").read_text()
    assert "interrupted; everything measured is kept" in text
    assert f"resuming dies-{number}" in text
    started = [e.number for e in events(tmp_path) if isinstance(e, ExperimentStarted)]
    assert started == list(range(1, len(started) + 1))


@pytest.mark.hosts
@pytest.mark.thorough
@RAY
def test_a_session_on_ray_survives_a_node(tmp_path):
    path = written(tmp_path, "ray")
    tune = tuned_by(tmp_path, str(path))
    with ray_cluster.cluster(sys.executable, cpus=1, count=3) as hosts:
        address = f"RAY_ADDRESS={ray_cluster.ADDRESS}"
        with session(hosts.command(0, "env", address, *tune)) as process:
            wait_for(lambda: second_started(tmp_path), process)
            hosts.kill(1)
            said = process.communicate(timeout=1800)[0]
            assert process.returncode == 0, said
            survived(tmp_path, said, "10.77.0.2")


@pytest.mark.hosts
@pytest.mark.thorough
@RAY
def test_a_ray_that_is_gone_ends_the_session_with_what_to_do(tmp_path):
    path = written(tmp_path, "ray")
    tune = tuned_by(tmp_path, str(path))
    with (
        ray_cluster.cluster(sys.executable, cpus=1) as hosts,
        session(hosts.command(0, "env", f"RAY_ADDRESS={ray_cluster.ADDRESS}", *tune)) as process,
    ):
        wait_for(lambda: second_started(tmp_path), process)
        subprocess.run(hosts.command(0, "pkill", "-9", "-f", "raylet|gcs_server"))
        said = process.communicate(timeout=1800)[0]
    assert process.returncode == 1, said
    assert "Ray does not answer; start Ray (`ray start --head`), and set RAY_ADDRESS to its address" in said
    ended = [e.measurement for e in events(tmp_path) if isinstance(e, ExperimentEnded)]
    assert {m.status for m in ended} <= {"ok", "infrastructure"}


def test_a_jobset_runs_a_session_inside(tmp_path):
    path = written(tmp_path, "ray")
    said = CliRunner().invoke(cli, ["tune", str(path), "--as", "jobset", "--seed", "3"])
    assert said.exit_code == 0, said.output
    given, jobset = yaml.safe_load_all(said.output)
    assert given["data"]["job.toml"] == path.read_text()
    head, others = jobset["spec"]["replicatedJobs"]
    assert (head["name"], others["name"]) == ("head", "others")
    assert others["template"]["spec"]["completions"] == 1
    (container,) = head["template"]["spec"]["template"]["spec"]["containers"]
    assert "exec autoscout tune /job/job.toml --no-tui --kb /kb/kb.duckdb --seed 3" in container["args"][0]
    assert "--resume autoscout-dies" in container["args"][0]
    (worker,) = others["template"]["spec"]["template"]["spec"]["containers"]
    assert f"--address={jobset['metadata']['name']}-head-0-0.{jobset['metadata']['name']}:6379" in worker["args"][0]
    for script in (container["args"][0], worker["args"][0]):
        assert subprocess.run(["bash", "-n", "-c", script]).returncode == 0
    assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["head"]


def test_a_session_elsewhere_needs_nodes_that_are_alike_and_hosts_that_fit(tmp_path):
    path = written(tmp_path, "slurm")
    refused = CliRunner().invoke(cli, ["tune", str(path), "--as", "jobset"]).exception
    assert 'the job has 2 nodes: set cluster.hosts = "ray"' in str(refused)
    path.write_text(path.read_text().replace("count = 1 }]", "count = 2 }]", 1))
    refused = CliRunner().invoke(cli, ["tune", str(path), "--as", "slurm"]).exception
    assert isinstance(refused, AutoscoutError)
    assert "one Slurm or JobSet script cannot request different nodes" in str(refused)
