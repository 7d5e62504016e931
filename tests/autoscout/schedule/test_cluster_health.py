"""Who of a job's hosts is called sick, by what each says and by the network; the list that the scheduler reads."""

import sys
from pathlib import Path

import msgspec
import pytest

from autoscout.machine import cluster_health
from autoscout.machine.cluster_health import Health, busy, excluded, findings, slow, troubles
from autoscout.running.processes import WORKER
from autoscout.targets.jobs import load_job
from kb.records import Cluster, Job

sys.path += [str(Path(__file__).parents[2] / "tools"), str(WORKER)]
import namespace_hosts
import node_health

GPU = {"index": 0, "name": "A100", "used_gib": 0.4, "total_gib": 40.0, "ecc": 0.0, "clock_mhz": 1410, "most_mhz": 1410}
FINE = {"cores": 8, "load": 1.0, "shm_free_gib": 8.0, "gpus": [GPU], "lost": [], "xid": [], "memory_free_gib": 100.0}


def job_on(hosts: str) -> Job:
    job = load_job("fixtures/jobs/smallest-cpu.toml")
    return msgspec.structs.replace(job, cluster=Cluster(nodes=job.cluster.nodes, hosts=hosts))


@pytest.mark.parametrize(
    ("changed", "said", "mend"),
    [
        ({"lost": ["GPU is lost"]}, "the driver lost a GPU", "nvidia-smi -r"),
        ({"gpus": [GPU, {**GPU, "index": 3, "ecc": 2.0}]}, "GPU 3 has 2 uncorrected ECC errors", "reset"),
        ({"xid": ["NVRM: Xid (PCI:0000:07:00): 79"]}, "Xid", "dmesg"),
        ({"gpus": [{**GPU, "used_gib": 30.0}]}, "others hold 30.0 of 40.0 GiB of GPU 0", "end what else runs"),
        ({"shm_free_gib": 0.06}, "0.06 GiB free in /dev/shm", "--shm-size"),
    ],
)
def test_what_makes_a_host_sick(changed, said, mend):
    assert troubles(FINE) is None
    found = troubles({**FINE, **changed})
    assert found is not None
    assert said in found[0]
    assert mend in found[1]


def test_a_busy_host_is_told_but_not_excluded():
    assert busy(FINE) == ""
    assert busy({**FINE, "load": 20.0}) == "20.0 processes want its 8 cores"
    assert troubles({**FINE, "load": 20.0}) is None


def test_what_a_node_says_is_read(monkeypatch):
    table = "0, NVIDIA A100, 412, 40960, 0, 1410, 1410, 0x0\n1, NVIDIA A100, [N/A], 40960, [N/A], 210, 1410, 0x4\n"
    found = node_health._gpus(table + "Unable to determine the device handle for GPU2: Unknown Error\n")
    assert [gpu["used_gib"] for gpu in found["gpus"]] == [412 / 1024, None]
    assert found["lost"] == ["Unable to determine the device handle for GPU2: Unknown Error"]


def test_a_host_with_a_slow_network_is_told_from_its_neighbours():
    links = {("a", "b"): 10.0, ("b", "c"): 1.0, ("c", "d"): 1.2, ("d", "a"): 11.0}
    assert list(slow(links)) == ["c"]
    assert slow({("a", "b"): 1.0, ("b", "a"): 10.0}) == {}


def test_the_list_is_in_the_schedulers_own_form():
    assert excluded(job_on("slurm"), ["n7", "n3"]) == "#SBATCH --exclude=n3,n7\n"
    assert excluded(job_on("hostfile"), ["n7", "n3"]) == "--exclude=n3@n7\n"
    assert excluded(job_on("slurm"), []) == ""


def test_findings_name_who_is_sick_and_what_mends_it():
    health = Health({"n3": ("it is on fire", "put it out")}, {"n1": "8 cores"}, {("n1", "n2"): 2.0}, True, 1.0)
    found = findings(job_on("slurm"), health)
    assert [(f.subject, f.ok) for f in found][:2] == [("host n3", False), ("host n1", True)]
    assert found[0].remedy == "put it out"


@pytest.mark.hosts
@pytest.mark.skipif(bool(namespace_hosts.missing()), reason=f"hosts of namespaces: {namespace_hosts.missing()}")
def test_a_smoke_names_hosts_that_cannot_be_used(tmp_path, monkeypatch):
    """Without a measurement between hosts, which needs an engine: one only is left."""
    job = job_on(str(tmp_path / "hostfile"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("h0 slots=2\nnowhere slots=2\n")
    with namespace_hosts.hosts(1) as hosts:
        monkeypatch.setenv("PATH", f"{hosts.bin}:/usr/bin:/bin")
        health = cluster_health.smoke(job)
    assert list(health.healthy) == ["h0"]
    why, mend = health.sick["nowhere"]
    assert (why, mend.partition(" (ssh:")[0]) == (
        "nobody knows a host of this name",
        "correct the host file, or name it in /etc/hosts",
    )
    assert health.shared
