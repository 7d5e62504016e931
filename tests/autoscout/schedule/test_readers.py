"""Host files, include and exclude, and Slurm allocations: what they say, and what is wrong with them, by line."""

import msgspec
import pytest

from autoscout.line import hostfile
from autoscout.machine.doctor import examine
from autoscout.running.cluster import slurm
from autoscout.running.cluster.choosing import chooser, reached
from autoscout.targets.jobs import load_job
from kb.records import AutoscoutError, Cluster, Node


def file_of(tmp_path, text: str):
    path = tmp_path / "hostfile"
    path.write_text(text)
    return path


def test_a_host_file_keeps_its_order_and_uneven_slots(tmp_path):
    path = file_of(tmp_path, "# ours\nnode2 slots=4\n\nnode1 slots=8 # big\nuser@10.0.0.7 max_slots=2\n")
    assert hostfile.read(path) == {"node2": 4, "node1": 8, "user@10.0.0.7": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a slots=2\na slots=2\n", "line 2: a is named twice"),
        ("a slots=0\n", "line 1: 'a slots=0' does not have the form"),
        ("a\nb slots=two\n", "line 2: 'b slots=two' does not have the form"),
        ("a slots=-1\n", "line 1"),
        ("a 4\n", "line 1"),
        ("# nobody\n", "names no host"),
        ("a slots=99999999999\n", "line 1"),
    ],
)
def test_a_wrong_host_file_is_refused_by_line(tmp_path, text, said):
    with pytest.raises(AutoscoutError, match=said) as error:
        hostfile.read(file_of(tmp_path, text))
    assert error.value.exit_code == 2


def test_a_host_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(AutoscoutError, match="No such file"):
        hostfile.read(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AutoscoutError, match="is not text"):
        hostfile.read(tmp_path / "bytes")


def test_include_and_exclude_as_deepspeed_has_them():
    slots = {"n1": 4, "n2": 4, "n3": 2}
    assert hostfile.part(slots, include="n2@n1:0,2") == {"n1": [0, 2], "n2": [0, 1, 2, 3]}
    assert hostfile.part(slots, exclude="n2@n1:0,2") == {"n1": [1, 3], "n3": [0, 1]}
    assert hostfile.part(slots) == {"n1": [0, 1, 2, 3], "n2": [0, 1, 2, 3], "n3": [0, 1]}


@pytest.mark.parametrize(
    ("include", "exclude", "said"),
    [
        ("n1", "n2", "are both set; remove one of the two"),
        ("n9", "", "there is no host 'n9'; the hosts are n1, n2"),
        ("n1:7", "", "n1 has devices 0 to 3, so there is no device '7'"),
        ("", "n1@n2", "excludes all devices; keep at least one"),
        ("n1:x", "", "so there is no device 'x'"),
    ],
)
def test_words_that_name_nothing_are_refused(include, exclude, said):
    with pytest.raises(AutoscoutError, match=said):
        hostfile.part({"n1": 4, "n2": 2}, include, exclude)


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[01-03,7]-ib,gpu1", ["n01-ib", "n02-ib", "n03-ib", "n7-ib", "gpu1"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_slurms_list_of_nodes(words, hosts):
    assert slurm.nodes(words) == hosts


@pytest.mark.parametrize("words", ["n[1-", "n[1-x]", "n1,n1", "n[]", ",", "n[1-99999999]"])
def test_what_is_no_list_of_nodes_is_refused(words):
    with pytest.raises(AutoscoutError, match="SLURM_JOB_NODELIST"):
        slurm.nodes(words)


def test_an_allocations_devices():
    two = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "2(x2),1"}
    assert slurm.allocation(two) == {"n1": ["0", "1"], "n2": ["0", "1"], "n3": ["0"]}
    assert slurm.allocation({**two, "SLURM_GPUS_ON_NODE": "4"})["n3"] == ["0", "1", "2", "3"]
    one = {"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_GPUS": "4-6,7"}
    assert slurm.allocation(one) == {"n1": ["4", "5", "6", "7"]}


def test_outside_of_an_allocation_and_one_that_contradicts_itself():
    with pytest.raises(AutoscoutError, match="not a Slurm allocation; start it with `salloc"):
        slurm.allocation({})
    with pytest.raises(AutoscoutError, match="names 2 hosts, but '4' counts 1"):
        slurm.allocation({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4"})
    with pytest.raises(AutoscoutError, match="is not a list of counts"):
        slurm.allocation({"SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "four"})


def test_a_job_reaches_what_is_included(tmp_path):
    path = file_of(tmp_path, "n1 slots=2\nn2 slots=4\n")
    (host,) = reached(Cluster(hosts=str(path), include="n2:1,3"))
    assert (host.name, [device.index for device in host.devices]) == ("n2", ["1", "3"])


def test_a_ray_that_does_not_answer_is_said_in_a_sentence(monkeypatch):
    """It was a list with one line of Ray's."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    cluster = Cluster(nodes=[Node(device="cpu", count=1)], hosts="ray")
    said = (
        r'cluster\.hosts = "ray": (Ray does not answer; start Ray|the package is not installed; run `pip install ray`)'
    )
    with pytest.raises(AutoscoutError, match=said) as refused:
        reached(cluster)
    assert refused.value.exit_code == 2


def test_hosts_that_are_too_few_are_said_with_what_mends_it(tmp_path):
    """`doctor` told to install it there."""
    nodes = [Node(device="cpu", count=1)] * 2
    job = load_job("fixtures/jobs/smallest-cpu.toml")
    job = msgspec.structs.replace(job, cluster=Cluster(nodes=nodes, hosts=str(file_of(tmp_path, "n1 slots=4\n"))))
    said = (
        "no host with 1 device is free for node 2 of 2: n1 has 4; add hosts to cluster.hosts, or correct cluster.nodes"
    )
    with pytest.raises(AutoscoutError, match=said):
        chooser(job)(2, frozenset())
    (found,) = [one for one in examine(tmp_path / "kb", job) if one.subject == "megatron"]
    assert (found.found, found.remedy) == (said, "")
