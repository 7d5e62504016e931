"""Experiments over several hosts, which are namespaces here: real ssh, real networks, ranks that need no engine."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from a_rank import __file__ as A_RANK
from asking import until

from autoscout.running import outcome as failures
from autoscout.running.cluster.choosing import chooser
from autoscout.running.interfaces import Profiler
from autoscout.running.over_hosts import OverHosts
from autoscout.targets.jobs import load_job, profiler_of
from kb.records import AutoscoutError, Cluster, Configuration, Job, LaunchSettings, Model, Node, OwnKnob, SpaceLimits

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import namespace_hosts

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(bool(namespace_hosts.missing()), reason=f"hosts of namespaces: {namespace_hosts.missing()}"),
]
PRIVATE = "/mnt"  # the hosts do not share it


@pytest.fixture(scope="module")
def hosts() -> Iterator[namespace_hosts.Hosts]:
    with namespace_hosts.hosts(3, PRIVATE, "8m") as found:
        yield found


@pytest.fixture(autouse=True)
def ssh_from_the_first(hosts, monkeypatch):
    monkeypatch.setenv("PATH", f"{hosts.bin}{os.pathsep}{os.environ['PATH']}")


def job_on(
    tmp_path: Path, lines: str = "h0 slots=2\nh1 slots=2\nh2 slots=2\n", counts: tuple[int, ...] = (2, 2)
) -> Job:
    path = tmp_path / "hostfile"
    path.write_text(lines)
    nodes = [Node(device="cpu", count=count) for count in counts]
    job = load_job("fixtures/jobs/smallest-cpu.toml")
    return msgspec.structs.replace(job, cluster=Cluster(nodes=nodes, hosts=str(path)))


@pytest.fixture
def launcher(tmp_path) -> Iterator[Callable[..., OverHosts]]:
    made: list[OverHosts] = []

    def make(*arguments, worker: str = A_RANK, **named) -> OverHosts:
        job = job_on(tmp_path, *arguments, **named)
        made.append(OverHosts(job, Path(worker), chooser(job), False, {}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def experiment(folder: Path, **told: str) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / "experiment.json"
    path.write_text(json.dumps(told))
    return path


def never() -> bool:
    return False


def said(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-?.json"))]


def test_ranks_start_where_they_belong_and_meet(launcher, tmp_path, monkeypatch, hosts):
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("SECRET", "ours alone")
    over = launcher("h0 slots=1\nh1 slots=2\n", counts=(1, 2))
    found = over.run(experiment(tmp_path / "x"), 3, 30.0, never)
    assert found.codes == {0: 0, 1: 0, 2: 0}
    ranks = said(tmp_path / "x")
    assert [rank["host"] for rank in ranks] == ["h0", "h1", "h1"]
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "0", "1"]
    assert [rank["LOCAL_WORLD_SIZE"] for rank in ranks] == ["1", "2", "2"]
    assert {rank["GLOO_SOCKET_IFNAME"] for rank in ranks} == {"eth0"}
    assert {rank["NCCL_DEBUG"] for rank in ranks} == {"WARN"}
    assert {rank["SECRET"] for rank in ranks} == {None}
    over.close()
    assert hosts.processes(0) == hosts.processes(1) == []


def test_a_folder_that_is_not_shared_is_brought_back(launcher, tmp_path, hosts):
    """h0 sees ours, the others have a /mnt of their own; what ranks leave comes here from all."""
    folder = Path(PRIVATE) / f"autoscout-test-{os.getpid()}"
    try:
        assert launcher().run(experiment(folder), 4, 30.0, never).codes == dict.fromkeys(range(4), 0)
        assert [rank["host"] for rank in said(folder)] == ["h0", "h0", "h1", "h1"]
        assert "runs on h1" in (folder / "rank-3.log").read_text()
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=True)


def test_a_rank_that_fails_names_its_host_and_ends_the_others(launcher, tmp_path, hosts):
    path = experiment(tmp_path / "x", **{"0": "hangs", "1": "hangs", "2": "hangs", "3": "fails"})
    found = launcher().run(path, 4, 60.0, never)
    assert found.codes == {3: 7}
    status, evidence = failures.classify(found, path.parent, 60.0, 0)
    assert (status, evidence.startswith("rank 3 (on h1) ended with exit code 7")) == ("error", True)
    assert not [line for host in (0, 1) for line in hosts.processes(host) if "a_rank" in line or "sleep" in line]


def test_a_limit_ends_all_hosts(launcher, tmp_path, hosts):
    found = launcher().run(experiment(tmp_path / "x", **{"2": "hangs", "0": "hangs"}), 4, 1.0, never)
    assert (found.timed_out, found.stopped, found.lost) == (True, False, "")
    assert not [line for host in (0, 1) for line in hosts.processes(host) if "sleep" in line]


def test_a_killed_controller_leaves_nothing_on_any_host(tmp_path, hosts):
    job = msgspec.json.encode(job_on(tmp_path)).decode()
    path = experiment(tmp_path / "x", **{str(rank): "hangs" for rank in range(4)})
    script = (
        "import sys, msgspec; from pathlib import Path; from kb.records import Job\n"
        "from autoscout.running.cluster.choosing import chooser; from autoscout.running.over_hosts import OverHosts\n"
        "job = msgspec.json.decode(sys.argv[1], type=Job)\n"
        "OverHosts(job, Path(sys.argv[2]), chooser(job), False, {}).run(Path(sys.argv[3]), 4, 600.0, lambda: False)\n"
    )
    controller = subprocess.Popen([sys.executable, "-c", script, job, A_RANK, str(path)])
    try:
        for host in (0, 1):
            until(lambda host=host: sum("sleep 600" in line for line in hosts.processes(host)) == 2)
    finally:
        controller.kill()
        controller.wait()
    for host in (0, 1):
        until(lambda host=host: hosts.processes(host) == [])


def test_a_host_that_dies_is_the_machines_fault_and_others_are_taken(launcher, tmp_path, hosts):
    over = launcher()
    path = experiment(tmp_path / "x", **{str(rank): "hangs" for rank in range(4)})

    def killing() -> None:
        until(lambda: sum("sleep 600" in line for line in hosts.processes(1)) == 2)
        hosts.kill(1)

    killer = threading.Thread(target=killing)
    killer.start()
    try:
        found = over.run(path, 4, 120.0, never)
    finally:
        killer.join()
    try:
        assert found.lost.startswith("h1: ")
        assert failures.classify(found, path.parent, 120.0, 0)[0] == "infrastructure"
        again = over.run(experiment(tmp_path / "y"), 4, 30.0, never)
        assert again.codes == dict.fromkeys(range(4), 0)
        assert [rank["host"] for rank in said(tmp_path / "y")] == ["h0", "h0", "h2", "h2"]
    finally:
        hosts.start_again(1)
        hosts.wait_for(1)


def test_a_host_that_fails_twice_is_drained(launcher, tmp_path):
    over = launcher("h0 slots=2\nnowhere slots=2\n")
    first = over.run(experiment(tmp_path / "x"), 4, 30.0, never)
    assert first.lost.startswith("nowhere: no host of this name is known; correct the host file")
    second = over.run(experiment(tmp_path / "x"), 4, 30.0, never)
    assert second.lost.endswith("nowhere has failed 2 times and is no longer used")
    with pytest.raises(AutoscoutError, match=r"no host with 2 .* for node 2 of 2.*nowhere is no longer used"):
        over.run(experiment(tmp_path / "x"), 4, 30.0, never)


def test_a_disk_that_is_nearly_full_is_said(launcher, monkeypatch, tmp_path):
    """Of h1, whose /mnt holds 8 MiB; its agent works there."""
    python = ["env", f"TMPDIR={PRIVATE}", sys.executable]
    monkeypatch.setattr("autoscout.running.interpreter.target_python", lambda job: python)
    folder = Path(PRIVATE) / f"autoscout-test-{os.getpid()}"
    try:
        found = launcher("h1 slots=2\nh0 slots=2\n").run(experiment(folder), 4, 30.0, never)
        assert found.lost == "h1: 0.01 GiB are free on the host's disk; free some space"
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=True)


def test_a_wrong_key_is_said(launcher, hosts, tmp_path):
    authorized = hosts.bin.parent / "authorized"
    kept = authorized.read_text()
    try:
        authorized.write_text("")
        found = launcher().run(experiment(tmp_path / "x"), 4, 30.0, never)
        assert "ssh is refused; copy your public key to that host (`ssh-copy-id h" in found.lost
    finally:
        authorized.write_text(kept)


@contextlib.contextmanager
def cut_off(hosts: namespace_hosts.Hosts, host: int, address: str) -> Iterator[None]:
    """The host answers ssh, but no connection goes from it to the address."""
    rules = (["sport", "22", "lookup", "main", "priority", "1000"], ["blackhole", "priority", "1001"])
    for rule in rules:
        subprocess.run(hosts.command(host, "ip", "rule", "add", "to", address, *rule), check=True)
    try:
        yield
    finally:
        for rule in rules:
            subprocess.run(hosts.command(host, "ip", "rule", "del", "to", address, *rule), check=True)


def test_hosts_that_do_not_reach_each_other_are_named(launcher, hosts, tmp_path):
    over = launcher("h0 slots=2\nh1 slots=2\n")
    with cut_off(hosts, 1, "10.77.0.1"):
        found = over.run(experiment(tmp_path / "x"), 4, 30.0, never)
    assert re.match(
        r"h1: the host cannot reach any address of h0 \(10\.77\.0\.1, .*\); open all ports between the two", found.lost
    )


def test_hosts_that_reach_another_by_different_addresses_are_named(launcher, hosts, tmp_path):
    """Ranks were started with no address to meet at."""
    for words in (("link", "add", "second", "type", "bridge"), ("link", "set", "second", "up")):
        subprocess.run(hosts.command(0, "ip", *words), check=True)
    subprocess.run(hosts.command(0, "ip", "addr", "add", "10.78.0.1/32", "dev", "second"), check=True)
    for host in (1, 2):
        subprocess.run(hosts.command(host, "ip", "route", "add", "10.78.0.1", "dev", "eth0"), check=True)
    over = launcher(counts=(2, 2, 2))
    try:
        with cut_off(hosts, 1, "10.77.0.1"), cut_off(hosts, 2, "10.78.0.1"):
            found = over.run(experiment(tmp_path / "x"), 6, 30.0, never)
    finally:
        subprocess.run(hosts.command(0, "ip", "link", "del", "second"), check=True)
    ways = "h1 by 10.78.0.1; h2 by 10.77.0.1"
    assert found.lost.startswith(
        f"h2: no address of h0 can be reached from all hosts ({ways}); name the hosts by their addresses"
    )


def test_other_versions_and_other_files_are_refused(launcher, tmp_path):
    theirs = Path(PRIVATE) / f"autoscout-test-{os.getpid()}.py"  # on h0 and nowhere else
    differ, alike = tmp_path / "differ.py", tmp_path / "alike.py"
    differ.write_text("import json, platform\nprint(json.dumps({'torch': platform.node(), 'devices': '2'}))\n")
    alike.write_text("import json\nprint(json.dumps({'torch': '2', 'device': 'cpu', 'devices': '2'}))\n")
    over = launcher(worker=str(alike))
    theirs.write_text("ours")
    try:
        with pytest.raises(AutoscoutError, match="h1: has torch h1, and h0 has h0; all ranks of an"):
            over.probe(differ, [])
        with pytest.raises(AutoscoutError, match=f"h1: {theirs} is missing or differs from the file on h0"):
            over.probe(alike, [theirs])
        assert over.probe(alike, []) == {"torch": "2", "device": "cpu", "devices": "4", "hosts": "2 + 2"}
    finally:
        theirs.unlink()


def test_a_clock_that_is_an_hour_off_is_said(launcher, tmp_path):
    over = launcher("h0 slots=2\n", counts=(2,))
    over.start(never)
    over._agents["h0"].hello["time"] += 3600.0  # what it said of itself
    found = over.run(experiment(tmp_path / "x"), 2, 30.0, never)
    assert found.lost.startswith(
        "h0: the host's clock is 3,600 s ahead of this machine's, so times and files cannot be compared; set the"
    )


def test_placements_follow_the_jobs_nodes(tmp_path):
    choose = chooser(job_on(tmp_path, "a slots=1\nb slots=4\nc slots=4\n", counts=(4, 1)))
    assert choose(5, frozenset()).spelled == "b:0,1,2,3 a:0"
    assert choose(3, frozenset("b")).spelled == "c:0,1,2"


def own_command(tmp_path: Path, lines: str = "h0 slots=2\nh1 slots=1\n", folder: str = "/") -> Profiler:
    job = job_on(tmp_path, lines, counts=(2, 1))
    script = Path(__file__).with_name("a_step.py")
    words = f"{sys.executable} {script} {{node}} {{head}} {{port}} {{ranks}} {{nodes}} {{folder}} {{mbs}}"
    started = LaunchSettings(command=words, path=folder, metrics={"step_time_ms": r"took (\d+) ms"})
    knob = OwnKnob(name="mbs", values=[1, 2])
    own = {"target": "command", "launch": started, "space": SpaceLimits(knob=[knob]), "model": Model()}
    return profiler_of(msgspec.structs.replace(job, **own))


def test_a_persons_own_command_runs_on_every_host(tmp_path, hosts):
    found = own_command(tmp_path).run(Configuration({"mbs": 1}), "mbs1", tmp_path / "x")
    assert (found.status, found.evidence) == ("ok", "")
    assert 0.009 < found.metrics["step_time_s"] < 0.012
    assert "node 0 of 2 on h0 has 2 ranks" in (tmp_path / "x" / "output.log").read_text()
    assert "node 1 of 2 on h1 has 1 ranks" in (tmp_path / "x" / "node-1.log").read_text()
    until(lambda: hosts.processes(0) == hosts.processes(1) == [])


def test_an_own_commands_worst_host_is_what_is_told(tmp_path):
    profiler = own_command(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "tell-1").write_text("this size does not fit")
    found = profiler.run(Configuration({"mbs": 1}), "mbs1", tmp_path / "x")
    assert (found.status, found.evidence.partition(" (log")[0]) == (
        "error",
        "h1: ended with exit code 1: ValueError: this size does not fit",
    )


def test_an_own_command_that_is_killed_there_is_no_error_of_its_own(tmp_path, hosts):
    """It was "ended with exit code 247"."""
    profiler = own_command(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "kill-1").touch()
    found = profiler.run(Configuration({"mbs": 1}), "mbs1", tmp_path / "x")
    said = "h1: ended with exit code 137 (SIGKILL), from outside"
    assert (found.status, found.evidence.partition(" (log")[0]) == ("killed", said)
    until(lambda: hosts.processes(0) == hosts.processes(1) == [])


def test_an_own_command_that_cannot_be_started_there_is_said_at_once(tmp_path):
    """Its folder is missing on another host: the first host waited for it until the time limit."""
    with tempfile.TemporaryDirectory(dir=PRIVATE) as folder:
        found = own_command(tmp_path, folder=folder).run(Configuration({"mbs": 1}), "mbs1", tmp_path / "x")
    assert (found.status, found.conditions) == ("infrastructure", {failures.HOST_LOST: 1.0})
    assert found.evidence.startswith(
        f"a host failed: h1: {folder}: No such file or directory; copy it to that host, or keep"
    )


def test_an_own_commands_lost_host_is_no_fact_about_the_configuration(tmp_path):
    profiler = own_command(tmp_path, "h0 slots=2\nnowhere slots=1\n")
    found = profiler.run(Configuration({"mbs": 1}), "mbs1", tmp_path / "x")
    assert (found.status, found.conditions) == ("infrastructure", {failures.HOST_LOST: 1.0})
    assert found.evidence.startswith("a host failed: nowhere: no host of this name is known")


def test_a_command_that_does_not_say_where_it_is_is_refused(tmp_path):
    job = job_on(tmp_path)
    job = msgspec.structs.replace(
        job, target="command", launch=LaunchSettings(command="torchrun --nproc-per-node {gpus} x.py")
    )
    with pytest.raises(AutoscoutError, match="has to say where it is: torchrun --nnodes"):
        profiler_of(job).environment()
