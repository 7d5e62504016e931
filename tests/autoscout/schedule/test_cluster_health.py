"""Who of a job's hosts is called sick, by what each says and by the network; the list that the scheduler reads."""

import sys
from pathlib import Path

import msgspec
import pytest

from autoscout.machine import cluster_health, gpu_state
from autoscout.machine.cluster_health import Health, busy, excluded, findings, slow, troubles
from autoscout.running.processes import WORKER
from autoscout.targets.jobs import load_job
from kb.records import Cluster, Job

sys.path += [str(Path(__file__).parents[2] / "tools"), str(WORKER)]
import namespace_hosts
import node_health

GPU = {"index": 0, "name": "A100", "used_gib": 0.4, "total_gib": 40.0, "ecc": 0.0, "clock_mhz": 1410, "most_mhz": 1410}
TOPOLOGY = """        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      NV4     SYS     SYS     0-31    0
GPU1    NV4      X      SYS     SYS     0-31    0
GPU2    SYS     SYS      X      NV4     32-63   1
GPU3    SYS     SYS     NV4      X      32-63   1

Legend:
  X    = Self
"""
FINE = {"cores": 8, "load": 1.0, "shm_free_gib": 8.0, "gpus": [GPU], "lost": [], "xid": [], "memory_free_gib": 100.0}


def job_on(hosts: str) -> Job:
    job = load_job("fixtures/jobs/smallest-cpu.toml")
    return msgspec.structs.replace(job, cluster=Cluster(nodes=job.cluster.nodes, hosts=hosts))


@pytest.mark.parametrize(
    ("changed", "said", "mend"),
    [
        ({"lost": ["GPU is lost"]}, "the driver can no longer reach a GPU", "nvidia-smi -r"),
        ({"gpus": [GPU, {**GPU, "index": 3, "ecc": 2.0}]}, "GPU 3 has 2 uncorrected ECC errors", "reset"),
        ({"xid": ["NVRM: Xid (PCI:0000:07:00): 79"]}, "Xid", "dmesg"),
        (
            {"gpus": [{**GPU, "used_gib": 30.0}]},
            "other processes use 30.0 of 40.0 GiB of GPU 0",
            "end the other processes",
        ),
        ({"gpus": [GPU, {**GPU, "index": 5, "throttled": "0x0000000000000048"}]}, "GPU 5 is slowed by heat", "cooling"),
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
    assert busy(FINE) is None
    assert (busy({**FINE, "load": 20.0}) or ("",))[0] == "20.0 processes compete for its 8 cores"
    assert troubles({**FINE, "load": 20.0}) is None


def test_what_a_node_says_is_read(monkeypatch):
    table = "0, NVIDIA A100, 412, 40960, 0, 1410, 1410, 0x0, 400.00, 400.00, 1410, 1410\n"
    table += "1, NVIDIA A100, [N/A], 40960, [N/A], 210, 1410, 0x4, 300.00, 400.00, [N/A], [N/A]\n"
    found = node_health._gpus(table + "Unable to determine the device handle for GPU2: Unknown Error\n")
    assert [gpu["used_gib"] for gpu in found["gpus"]] == [412 / 1024, None]
    assert gpu_state.limits(found["gpus"]) == (
        "GPU 1 is limited to 300 of 400 W",
        "run `nvidia-smi -pl 400`, unless the limit is intended",
    )
    assert found["lost"] == ["Unable to determine the device handle for GPU2: Unknown Error"]


def test_a_field_that_a_driver_has_no_more_costs_no_other(driver):
    """nvidia-smi answers a query with an unknown field with nothing else."""
    driver(
        'case "$1" in *applications*)\n'
        '  field=$(echo "$1" | tr , "\\n" | grep -m1 applications)\n'
        '  echo "Field \\"$field\\" is not a valid field to query."; exit 2;;\n'
        '*) echo "0, NVIDIA A100, 412, 40960, 3, 1410, 1410, 0x0, 300.00, 400.00"\n'
        '   echo "Unable to determine the device handle for GPU1: Unknown Error";; esac'
    )
    found = node_health._gpus(node_health._queried(node_health._FIELDS))
    assert [(gpu["ecc"], gpu["watts"], gpu["application_mhz"]) for gpu in found["gpus"]] == [(3.0, 300.0, None)]
    assert found["lost"] == ["Unable to determine the device handle for GPU1: Unknown Error"]


def test_clocks_that_are_held_are_told_with_the_command_that_frees_them():
    held = [{**GPU, "index": i, "application_mhz": 1095.0, "default_mhz": 1410.0} for i in (0, 2)]
    assert gpu_state.limits([{**GPU, "application_mhz": 1410.0, "default_mhz": 1410.0}]) is None
    assert gpu_state.limits(held) == (
        "GPUs 0, 2 are held at 1095 of 1410 MHz",
        "run `nvidia-smi -rac`, unless the limit is intended",
    )


def test_how_gpus_are_joined_and_whose_are_joined_otherwise():
    assert gpu_state.joined(TOPOLOGY) == "NV4 × 2, SYS × 4"
    all_four = TOPOLOGY.replace("SYS", "NV4")
    assert gpu_state.joined(all_four) == "NV4 between all GPUs"
    assert gpu_state.joined("") == ""
    links = {"a": "NV4 between all", "b": "NV4 between all", "c": "NV4 × 2, SYS × 4", "d": ""}
    assert gpu_state.odd_ones(links) == {"c": "NV4 between all"}
    assert gpu_state.odd_ones({"a": "NV4 between all", "c": "PHB between all"}) == {}  # nobody can tell which


def test_a_host_with_a_slow_network_is_told_from_its_neighbours():
    links = {("a", "b"): 10.0, ("b", "c"): 1.0, ("c", "d"): 1.2, ("d", "a"): 11.0}
    assert list(slow(links)) == ["c"]
    assert slow({("a", "b"): 1.0, ("b", "a"): 10.0}) == {}


def test_the_list_is_in_the_schedulers_own_form():
    assert excluded(job_on("slurm"), ["n7", "n3"]) == "#SBATCH --exclude=n3,n7\n"
    assert excluded(job_on("hostfile"), ["n7", "n3"]) == "--exclude=n3@n7\n"
    assert excluded(job_on("slurm"), []) == ""


def test_findings_name_who_is_sick_and_what_mends_it():
    sick, links = {"n3": ("it is on fire", "put it out")}, {("n1", "n2"): 2.0}
    told = {"n2": ("GPU 0 is limited to 300 of 400 W", "take it back")}
    health = Health(sick, {"n1": "8 cores", "n2": "8 cores"}, told, links, True, 1.0)
    found = findings(job_on("slurm"), health)
    assert [(f.subject, f.ok) for f in found][:3] == [("host n3", False), ("host n1", True), ("host n2", False)]
    assert (found[2].found, found[2].remedy) == ("8 cores; GPU 0 is limited to 300 of 400 W", "take it back")
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
        "no host of this name is known",
        "correct the host file, or name it in /etc/hosts",
    )
    assert health.shared
