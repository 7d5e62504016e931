"""An exported launch asks for exactly the nodes, devices and ranks of its configuration, uneven ones too."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from autoscout.deploy.export import launch, written
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.launch import Launch
from kb.records import AutoscoutError, Cluster, Configuration, Job, Node, Objective, OwnKnob, SpaceLimits
from kb.records import LaunchSettings as JobLaunch

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import slurm_cluster

UNEVEN = [Node("a100-40g", 8), Node("a40", 4)]
FORMS = ("command", "slurm", "hostfile", "jobset", "ray")


@functools.cache
def paper() -> Job:
    """The paper's own cluster: 8 A100 and 4 A40."""
    job = load_job("fixtures/jobs/llama-3.2-3b.toml")
    started = msgspec.structs.replace(job.launch, transformer_engine=True)
    return msgspec.structs.replace(job, cluster=Cluster(nodes=UNEVEN), launch=started)


@functools.cache
def exported(a100: int, a40: int) -> Launch:
    space = JobSpace.of_job(paper())
    recipe = {**space.recipes[0].knobs, "a100_40g": a100, "a40": a40, "tp": 4, "dp": (a100 + a40) // 4}
    return launch(paper(), Configuration(recipe), "winner", "measured")


def on_nodes(counts: list[int], kinds: list[str] | None = None, on_gpus: bool = True) -> Launch:
    return Launch(
        job="tiny",
        name="n",
        evidence="",
        program=["train.py"],
        arguments={"--mbs": 1},
        environment={"X": "a b"},
        devices=counts,
        kinds=kinds or [],
        ranks=counts,
        on_gpus=on_gpus,
    )


def test_the_papers_cluster_is_not_asked_for_twice_six():
    script = written(paper(), exported(8, 4), "slurm")
    asked = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]
    assert asked[1:] == [
        *("--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=8"),
        "hetjob",
        *("--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=4"),
    ]
    assert "# on a40: add the --constraint" in script
    assert "srun --het-group=0-1 " in script
    hosts = [line for line in written(paper(), exported(8, 4), "hostfile").splitlines() if not line.startswith("#")]
    assert hosts == ["node1 slots=8", "node2 slots=4"]


@pytest.mark.parametrize("on_gpus", [True, False])
def test_a_batch_script_says_that_the_ranks_of_gpus_want_processors(on_gpus: bool):
    """By default Slurm gives a task one processor, and one task starts all ranks of a node."""
    script = written(paper(), on_nodes([8, 8], on_gpus=on_gpus), "slurm")
    assert ("# add --exclusive, or --cpus-per-task and --mem" in script) == on_gpus
    assert ("#SBATCH --cpus-per-task=8" in script) != on_gpus


def test_a_winner_on_the_fast_devices_alone_leaves_the_others_out():
    script = written(paper(), exported(8, 0), "slurm")
    assert "--gpus-per-node=8" in script
    assert "hetjob" not in script
    assert "a40" not in script
    assert "# on a100-40g: add the --constraint" in script


def test_a_winner_on_the_slow_devices_alone_says_which_they_are():
    found = exported(0, 4)
    assert "# on a40: add the --constraint" in written(paper(), found, "slurm")
    assert "# node1 has a40" in written(paper(), found, "hostfile")
    assert "ON = [{'accelerator_type:A40': 0.001}]" in written(paper(), found, "ray")
    (pod,) = yaml.safe_load(written(paper(), found, "jobset"))["spec"]["replicatedJobs"]
    assert pod["template"]["spec"]["completions"] == 1
    assert "# on a40: add the nodeSelector" in written(paper(), found, "jobset")


def test_a_ray_script_asks_for_the_kinds_of_devices_that_were_measured():
    script = written(paper(), exported(8, 4), "ray")
    compile(script, "ray.py", "exec")
    assert "ON = [{'accelerator_type:A100': 0.001}, {'accelerator_type:A40': 0.001}]" in script
    assert '[{"GPU": count, **on} for count, on in zip(RANKS, ON)], strategy="STRICT_SPREAD"' in script


def test_a_jobset_has_a_pod_for_each_node():
    found = yaml.safe_load(written(paper(), exported(8, 4), "jobset"))
    jobs = [job["template"]["spec"] for job in found["spec"]["replicatedJobs"]]
    assert [job["completions"] for job in jobs] == [1, 1]
    containers = [job["template"]["spec"]["containers"][0] for job in jobs]
    assert [c["resources"]["limits"]["nvidia.com/gpu"] for c in containers] == [8, 4]
    for number, (container, count) in enumerate(zip(containers, (8, 4), strict=True)):
        script = container["args"][0]
        assert f"--nproc-per-node {count} --nnodes 2 --node-rank $(({number} + JOB_COMPLETION_INDEX))" in script
        assert "--master-addr llama-3-2-3b-nodes0-0-0.llama-3-2-3b" in script


@pytest.mark.parametrize("counts", [[2, 2], [3, 1], [1, 1, 2]])
def test_shell_scripts_start_each_nodes_own_ranks(tmp_path, counts):
    """With a torchrun that tells what it was given."""
    torchrun = tmp_path / "torchrun"
    torchrun.write_text('#!/bin/sh\necho "$X" "$@"\n')
    torchrun.chmod(0o755)
    script = written(paper(), on_nodes(counts), "command")
    for node, count in enumerate(counts):
        mine = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HEAD": "h0", "NODE": str(node)}
        said = subprocess.run(["bash", "-c", script], env=mine, capture_output=True, text=True, check=True).stdout
        start = f"a b --nproc-per-node {count} --nnodes {len(counts)} --node-rank {node} --master-addr h0"
        assert said.startswith(start)


def own_script(command: str, environment: dict[str, str], counts: list[int]) -> Job:
    """A job of a user's own script, which is told its place on each of several hosts."""
    return Job(
        name="own",
        target="command",
        cluster=Cluster(nodes=[Node("h100", count) for count in counts], hosts="slurm"),
        objective=Objective(minimize="step_time_s"),
        launch=JobLaunch(command=command, environment=environment, path="/"),
        space=SpaceLimits(knob=[OwnKnob(name="mbs", values=[1, 2], sets="--micro-batch")]),
    )


TOLD = "show --node-rank {node} --nproc {ranks} --meet {head}:29 --micro-batch 1 'a b'"


@pytest.mark.parametrize("counts", [[2, 2], [3, 1], [4]])
@pytest.mark.parametrize("form", ["slurm", "jobset"])
def test_a_script_of_several_nodes_is_told_where_it_runs(tmp_path, counts, form):
    """NODE and HEAD stood there literally, and no node could start."""
    job = own_script(TOLD, {"RANK_OF_NODE": "{node}"}, counts)
    (tmp_path / "show").write_text('#!/bin/sh\nfor each in "$RANK_OF_NODE" "$@"; do echo "$each"; done\n')
    nodes = " ".join(map(str, range(len(counts))))
    (tmp_path / "srun").write_text(f'#!/bin/sh\nfor SLURM_PROCID in {nodes}; do export SLURM_PROCID; "$@"; done\n')
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho h0\necho h1\n")
    for program in ("show", "srun", "scontrol"):
        (tmp_path / program).chmod(0o755)
    text = written(job, launch(job, Configuration({"mbs": 2}), "winner", "measured"), form)
    path = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "h",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "h",
    }
    scripts = [(text.replace("--het-group=0-1 ", ""), path)]
    if form == "jobset":
        groups = [job["template"]["spec"] for job in yaml.safe_load(text)["spec"]["replicatedJobs"]]
        each = [(group, str(i)) for group in groups for i in range(group["completions"])]
        scripts = [
            (group["template"]["spec"]["containers"][0]["args"][0], path | {"JOB_COMPLETION_INDEX": i})
            for group, i in each
        ]
    said = [
        subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True).stdout
        for script, env in scripts
    ]
    head = "h0" if form == "slurm" else "own-nodes0-0-0.own"
    words = [
        [
            str(node),
            "--node-rank",
            str(node),
            "--nproc",
            str(count),
            "--meet",
            f"{head}:29",
            "--micro-batch",
            "2",
            "a b",
        ]
        for node, count in enumerate(counts)
    ]
    assert "".join(said).splitlines() == [word for each in words for word in each]
    assert "# add: NODE" not in text


def test_a_pod_is_not_asked_for_the_devices_of_two_nodes():
    job = own_script(TOLD, {}, [8, 8])
    with pytest.raises(AutoscoutError, match="has 2 nodes; use --format jobset"):
        written(job, launch(job, Configuration({"mbs": 2}), "winner", "measured"), "k8s")


def test_a_ray_script_asks_for_a_bundle_of_each_nodes_devices():
    script = written(paper(), on_nodes([3, 1], on_gpus=False), "ray")
    compile(script, "ray.py", "exec")
    assert "RANKS = [3, 1]" in script
    assert '[{"CPU": count} for count in RANKS], strategy="STRICT_SPREAD"' in script


@pytest.mark.parametrize("form", FORMS)
def test_hosts_that_differ_never_export_alike(form):
    uneven, swapped, more = (written(paper(), on_nodes(counts), form) for counts in ([3, 1], [1, 3], [3, 1, 1]))
    assert len({uneven, swapped, more}) == 3


def test_names_are_those_that_were_measured():
    found = msgspec.structs.replace(on_nodes([2, 2]), hosts=["gpu7", "gpu3"])
    assert written(paper(), found, "hostfile").splitlines()[-2:] == ["gpu7 slots=2", "gpu3 slots=2"]
    assert json.loads(written(paper(), found, "json"))["hosts"] == ["gpu7", "gpu3"]
    assert "# measured on hosts gpu7, gpu3, in this order" in written(paper(), found, "command")


@pytest.mark.hosts
@pytest.mark.skipif(bool(slurm_cluster.missing()), reason=f"a Slurm of two nodes: {slurm_cluster.missing()}")
def test_slurm_gives_exactly_what_the_script_asks_for(tmp_path):
    """With a torchrun that tells what it was given and sees."""
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(f'#!/bin/sh\necho "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $@" > {tmp_path}/$SLURM_PROCID\n')
    torchrun.chmod(0o755)
    script = tmp_path / "run.sh"
    with slurm_cluster.slurm() as cluster:
        path = f"{tmp_path}:{os.environ['PATH']}"
        for counts in ([2, 2], [3, 1]):
            script.write_text(written(paper(), on_nodes(counts), "slurm"))
            sbatch = ("sbatch", "-W", "--mem=100", f"--chdir={tmp_path}", str(script))
            subprocess.run(cluster.command("env", f"PATH={path}", *sbatch), check=True, capture_output=True)
            said = [(tmp_path / str(node)).read_text().split() for node in (0, 1)]
            assert sorted(words[0] for words in said) == ["node1", "node2"]
            for node, (words, count) in enumerate(zip(said, counts, strict=True)):
                assert words[1] == ",".join(map(str, range(count)))
                assert words[2:8] == ["--nproc-per-node", str(count), "--nnodes", "2", "--node-rank", str(node)]
                assert words[9] == said[0][0]
            job = own_script("torchrun {node} {ranks} {head}", {}, counts)
            script.write_text(written(job, launch(job, Configuration({"mbs": 1}), "winner", "measured"), "slurm"))
            subprocess.run(cluster.command("env", f"PATH={path}", *sbatch), check=True, capture_output=True)
            said = [(tmp_path / str(node)).read_text().split() for node in (0, 1)]
            told = [[str(node), str(count), said[0][0], "--micro-batch", "1"] for node, count in enumerate(counts)]
            assert [words[2:] for words in said] == told
