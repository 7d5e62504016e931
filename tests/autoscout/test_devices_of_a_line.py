"""`init`: how many devices a launch line runs on, and of which kind."""

import json
import shlex
import sys
import tomllib

import pytest

from autoscout.line.batch_lines import Batch, asked, node_of
from autoscout.line.launch_line import Line, read
from autoscout.line.line_devices import devices
from autoscout.machine.starting import job_file
from autoscout.targets.command.arguments import Place, not_on_hosts, started
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from kb.records import AutoscoutError

ACCELERATE = """compute_environment: LOCAL_MACHINE
fsdp_config:
  fsdp_version: 2
num_machines: 2  # of the rack
num_processes: 16
mixed_precision: bf16
"""
HOSTS = "node1 slots=8\nnode2 slots=4\nnode3 slots=8\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acc.yaml").write_text(ACCELERATE)
    (tmp_path / "acc.json").write_text(json.dumps({"num_machines": 1, "num_processes": 4}))
    (tmp_path / "hosts").write_text(HOSTS)
    (tmp_path / "sft.yaml").write_text("per_device_train_batch_size: 2\ngradient_accumulation_steps: 8\n")
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 240, "zero_optimization": {"stage": [0, 1]}}))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("accelerate launch --config_file acc.yaml train.py", [8, 8]),
        ("accelerate launch --config_file=acc.json train.py", [4]),
        ("accelerate launch --config_file acc.yaml --num_machines 1 --num_processes 2 train.py", [2]),
        ("accelerate launch train.py --config_file acc.yaml", [0]),  # the script's own
        ("torchrun --config_file acc.yaml train.py", [0]),
        ("srun -N2 --ntasks-per-node=4 python train.py", [4, 4]),
        ("srun -N2 -n8 python train.py -n 3", [4, 4]),
        ("srun -N2 --ntasks-per-node=1 --gpus-per-node=8 llamafactory-cli train sft.yaml", [8, 8]),
        ("srun -N2 --ntasks-per-node=1 torchrun --nproc-per-node=gpu train.py", [0, 0]),
        ("srun -N2 -n2 llamafactory-cli train sft.yaml", [0, 0]),
        ("srun -N2 --ntasks-per-node=1 python train.py", [1, 1]),
        ("srun -N1 -n1 accelerate launch --num_processes 1 train.py", [1]),
        ("srun -N1 -n1 torchrun --nproc-per-node 1 train.py", [1]),
        ("mpirun -n 4 python train.py", [4]),
        ("torchrun --nproc-per-node 2 train.py -N4 -n 3", [2]),
        ("torchrun --nnodes 2 --nproc-per-node gpu train.py", [0, 0]),
        ("deepspeed --num_nodes 2 --num_gpus 8 --hostfile gone train.py", [8, 8]),
        ("deepspeed --hostfile hosts train.py", [8, 4, 8]),
        ("deepspeed -H hosts --num_nodes 2 --num_gpus 6 train.py --num_gpus 3", [6, 4]),
        ("deepspeed --hostfile hosts --include node1@node3:0,1 train.py", [8, 2]),
        ("deepspeed --include localhost:0,2,5 train.py", [3]),
        ("deepspeed train.py", [0]),
    ],
)
def test_the_devices_of_each_node(folder, line, counts):
    assert devices(read(line, "launch.current")).counts == counts


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train sft.yaml", [8]),
        ("FORCE_TORCHRUN=true NNODES=2 NODE_RANK=0 NPROC_PER_NODE=4 lmf train sft.yaml", [4, 4]),
        ("NPROC_PER_NODE=4 torchrun --nproc-per-node 2 train.py --num-workers 2", [2]),
        ("env NPROC_PER_NODE=gpu FORCE_TORCHRUN=1 llamafactory-cli train sft.yaml", [1]),
        ("FORCE_TORCHRUN=1 NPROC_PER_NODE=8 srun -N2 --ntasks-per-node=1 llamafactory-cli train sft.yaml", [8, 8]),
        ("FORCE_TORCHRUN=1 NPROC_PER_NODE=8 srun -N1 -n1 llamafactory-cli train sft.yaml", [8]),
    ],
)
def test_variables_say_how_many_processes_run(folder, line, counts):
    """They were kept for the run, and not read: the job was of one device, and its batch of one rank."""
    made = tomllib.loads(job_file(shlex.split(line), folder)[0])
    assert [node["count"] for node in made["cluster"]["nodes"]] == counts
    if "sft.yaml" in line:
        assert made["traffic"]["global_batch"] == 2 * 8 * sum(counts)
        assert made["launch"]["script"] == "llamafactory"


def test_llamafactory_starts_ranks_on_cpus_only_if_it_is_forced(folder):
    words = shlex.split("NPROC_PER_NODE=2 llamafactory-cli train sft.yaml")
    assert any("FORCE_TORCHRUN = '1'" in note for note in job_file(words, folder)[1])
    assert not any("FORCE_TORCHRUN" in note for note in job_file(["FORCE_TORCHRUN=1", *words], folder)[1])


def test_a_node_that_variables_name_is_one_of_the_jobs_hosts(folder):
    """Experiments would have started the first of two nodes, which waits for the other."""
    line = "FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=0 MASTER_ADDR=h1 NPROC_PER_NODE=4 llamafactory-cli train sft.yaml"
    text, notes = job_file(shlex.split(line), folder)
    (folder / "job.toml").write_text(text)
    job = load_job(folder / "job.toml")
    assert job.cluster.hosts == str(folder / "hostfile")
    assert any(note.startswith("cluster.hosts: name a host file") for note in notes)
    assert not_on_hosts(job) == ""
    place = Place(folder="here", port="29", iterations="9", node="1", head="h0", ranks="4")
    told = started(job, JobSpace.of_job(job).reference, place).environment
    assert told == {
        "FORCE_TORCHRUN": "1",
        "NNODES": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "h0",
        "MASTER_PORT": "29",
        "NPROC_PER_NODE": "4",
    }
    launch = target_of(job).launch(job, JobSpace.of_job(job).reference)
    assert (launch.environment["NODE_RANK"], launch.environment["MASTER_ADDR"]) == ("NODE", "HEAD")
    assert any("29500" in missing for missing in launch.missing)
    line = target_of(job).probe_line(job, JobSpace.of_job(job).reference, folder / "experiment.json")
    assert line.startswith(
        "env FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=NODE MASTER_ADDR=HEAD NPROC_PER_NODE=4 MASTER_PORT=29500 "
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("torchrun --nnodes 2 --node-rank 0 --nproc-per-node 8 train.py --num-workers 2", True),
        ("accelerate launch --config_file acc.yaml train.py --num-workers 2", True),
        ("srun torchrun --nnodes 2 --nproc-per-node 8 train.py --num-workers 2", False),
        ("deepspeed --num_nodes 2 --num_gpus 8 --hostfile hosts train.py --num-workers 2", False),
        ("torchrun --nproc-per-node 8 train.py --num-workers 2", False),
    ],
)
def test_a_line_that_starts_one_node_of_several_is_said(folder, line, told):
    notes = job_file(shlex.split(line), folder)[1]
    assert any(note.startswith("cluster.hosts: ") and "{node}" in note for note in notes) == told


@pytest.mark.parametrize(("variable", "under"), [("HF_HOME", ""), ("XDG_CACHE_HOME", "huggingface/"), ("", "")])
def test_accelerates_own_configuration_counts_where_no_other_is_named(folder, monkeypatch, variable, under):
    """`accelerate config` writes it once, and every `accelerate launch` reads it: the job was of one device."""
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder / "home"))
    home = folder / (f"there/{under}accelerate" if variable else "home/.cache/huggingface/accelerate")
    home.mkdir(parents=True)
    (home / "default_config.yaml").write_text(ACCELERATE)
    before = f"{variable}={folder}/there " if variable else ""

    def begun(line: str) -> tuple[list[int], list[str]]:
        text, notes = job_file(shlex.split(before + line), folder)
        nodes = tomllib.loads(text)["cluster"]["nodes"]
        return [node["count"] for node in nodes], [note for note in notes if "default_config.yaml" in note]

    counts, notes = begun("accelerate launch run_clm.py --per_device_train_batch_size 2")
    assert counts == [8, 8]
    file = f"{home}/default_config.yaml"
    assert notes == [f"cluster: the nodes are those of {file}, which `accelerate launch` reads; check them"]
    assert begun("accelerate launch --num_machines 1 --num_processes 2 run_clm.py --x 1") == ([2], [])
    assert begun("accelerate launch --config_file acc.json run_clm.py --x 1") == ([4], [])
    assert begun("accelerate launch --cpu run_clm.py --x 1") == ([1], [])
    assert begun("torchrun run_clm.py --x 1") == ([1], [])


def test_accelerate_starts_one_process_on_a_cpu(folder):
    """The job was of two ranks, and its batch of twice the samples that a step has."""
    flags = "--per_device_train_batch_size 2 --output_dir o --save_steps 9"
    line = f"accelerate launch --cpu --num_processes 2 run_clm.py {flags}"
    text, notes = job_file(shlex.split(line), folder)
    made = tomllib.loads(text)
    assert [node["count"] for node in made["cluster"]["nodes"]] == [1]
    assert made["traffic"]["global_batch"] == 2
    assert any("starts one process, whatever --num_processes is" in note for note in notes)


def test_the_configuration_of_accelerate_says_how_many_processes_run(folder):
    """Its number of processes was not read: the job was of one device."""
    line = "accelerate launch --config_file acc.yaml run_clm.py --per_device_train_batch_size 2"
    made = tomllib.loads(job_file(shlex.split(line), folder)[0])
    assert [node["count"] for node in made["cluster"]["nodes"]] == [8, 8]
    assert made["traffic"]["global_batch"] == 32
    notes = job_file(shlex.split(line.replace("acc.yaml", "gone.yaml")), folder)[1]
    assert [note for note in notes if "gone.yaml" in note] == [
        "cluster: correct cluster.nodes, because gone.yaml, which gives the number of processes, cannot be read here"
    ]


@pytest.mark.parametrize(
    ("flags", "counts", "hosts"),
    [
        ("--hostfile hosts", [8, 4, 8], "hosts"),
        ("--num_nodes 2 --num_gpus 8 --hostfile hosts", [8, 4], "hosts"),
        ("--num_nodes 2 --num_gpus 8", [8, 8], "/job/hostfile"),
    ],
)
def test_the_hosts_of_a_deepspeed_line_are_the_jobs(folder, flags, counts, hosts):
    """They were left out: the job was of one machine."""
    line = f"deepspeed {flags} train.py --deepspeed --deepspeed_config ds.json"
    text, notes = job_file(shlex.split(line), folder)
    (folder / "job.toml").write_text(text)
    job = load_job(folder / "job.toml")
    assert [node.count for node in job.cluster.nodes] == counts
    assert job.cluster.hosts == str(folder / hosts)
    assert "--nnodes {nodes} --node-rank {node}" in job.launch.command
    assert JobSpace.of_job(job).count == 2
    missing = [
        note
        for note in notes
        if note.startswith("cluster: correct cluster.nodes, because the hosts of the launch line")
    ]
    assert bool(missing) == (hosts == "/job/hostfile")


def test_a_part_of_the_hosts_stays_a_part(folder):
    line = "deepspeed --hostfile hosts --include node1@node3:0,1 train.py --deepspeed_config ds.json"
    cluster = tomllib.loads(job_file(shlex.split(line), folder)[0])["cluster"]
    assert cluster["include"] == "node1@node3:0,1"
    assert [node["count"] for node in cluster["nodes"]] == [8, 2]


@pytest.mark.parametrize(("before", "hosts"), [("srun ", "slurm"), ("", "hostfile")])
def test_torchruns_nodes_need_hosts(folder, before, hosts):
    line = f"{before}torchrun --nnodes 2 --nproc-per-node 8 train.py --deepspeed_config ds.json"
    text, notes = job_file(shlex.split(line), folder)
    made = tomllib.loads(text)
    assert (made["cluster"]["hosts"], len(made["cluster"]["nodes"])) == (hosts, 2)
    assert made["launch"]["command"].endswith(f"--master-port {{port}} train.py --deepspeed_config {folder}/ds.json")
    assert any(note.startswith("cluster.hosts: name a host file") for note in notes) == (hosts == "hostfile")


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("--nodes=2\n#SBATCH --gpus-per-node=a40:8", Batch(2, 8, "a40")),
        ("-N 2 --exclusive --gres=gpu:a100:4", Batch(2, 4, "a100")),
        ("-N2 -J name --gres=gpu:a100:4", Batch(2, 4, "a100")),
        ("-N2 -G8", Batch(2, 4)),
        ("--gres=gpu:h100", Batch(1, 1, "h100")),  # not a hundred
        ("--gres=nvme:1,gpu:4", Batch(1, 4)),
        ("--nodes=4 --gpus=h100:16", Batch(4, 4, "h100")),
        ("-N 2 --ntasks-per-node=8", Batch(2, 8, by_tasks=True, tasks=8)),
        ("-N 2 --ntasks-per-node=4 --gpus-per-task=h100:1", Batch(2, 4, "h100", tasks=4)),
        ("--nodes=2 --ntasks=8 --gpus-per-task=2", Batch(2, 8)),
        ("-n8 --gpus-per-task=a100:1 -N2", Batch(2, 4, "a100")),
        ("-N 2 --tres-per-node=gres/gpu:h100:4", Batch(2, 4, "h100")),
        ("-n 4 --tres-per-task=cpu:8,gres/gpu:1", Batch(1, 4)),
        ("--gpus-per-socket=2 --sockets-per-node=2", Batch(1, 4)),
        ("--nodes=4 # whole ones\n#SBATCH --exclusive", Batch(4, 0, by_tasks=True)),
        ("--gres=nvme:1 --time=1:00:00", None),
    ],
)
def test_what_sbatch_lines_ask_for(lines, found):
    assert asked(f"#!/bin/bash\n#SBATCH {lines}\nsrun train\n") == found


@pytest.mark.parametrize(
    "line", ["torchrun --nnodes $SLURM_JOB_NUM_NODES --nproc-per-node 8", "torchrun --nproc-per-node 8"]
)
def test_whole_nodes_are_counted_without_a_word_of_their_gpus(tmp_path, line):
    """Where nothing asks for GPUs, #SBATCH --nodes was passed over, and four nodes were one."""
    script = tmp_path / "run.sbatch"
    script.write_text(f"#SBATCH --nodes=4 # number of nodes\n#SBATCH --exclusive\nsrun -l {line} train.py\n")
    made = tomllib.loads(job_file([str(script)], tmp_path)[0])
    assert [node["count"] for node in made["cluster"]["nodes"]] == [8, 8, 8, 8]


def test_one_task_of_a_node_is_its_launcher(tmp_path):
    """On nodes that are had whole nothing asks for GPUs, and the job was of one on each."""
    script = tmp_path / "run.sbatch"
    line = "srun torchrun --nnodes 2 --nproc-per-node 8 train.py --num-workers 2\n"
    script.write_text(f"#SBATCH --nodes=2 --ntasks-per-node=1 --exclusive\n{line}")
    made = tomllib.loads(job_file([str(script)], tmp_path)[0])
    assert [node["count"] for node in made["cluster"]["nodes"]] == [8, 8]


@pytest.mark.parametrize(
    ("kind", "node"),
    [
        ("a40", {"device": "a40"}),
        ("nvidia_h100_80gb_hbm3", {"device": "h100"}),
        ("A100-SXM4-40GB", {"device": "a100-40g"}),
        ("mi300x", {"device": "mi300x"}),
        ("A100-PCIE-80GB", {"device": "a100-pcie"}),
        ("NVIDIA A100-PCIE-40GB", {"device": "a100-pcie-40g"}),
        ("NVIDIA A10", {"device": "a10"}),  # 125 TFLOP/s; an A10G has 70
        ("NVIDIA A10G", {"device": "a10g"}),
        ("Tesla T4", {"device": "t4"}),
        ("NVIDIA GB10", {"device": "gb10"}),
        ("a100_3g.20gb", {}),  # a part of one
        ("rtx4000", {}),
    ],
)
def test_the_kind_that_a_site_names(kind, node):
    assert node_of(kind)[0] == node


def test_a_batch_scripts_kind_of_gpu_is_the_jobs(tmp_path):
    """Only the count was read, and the job was of CPU ranks."""
    script = tmp_path / "run.sbatch"
    line = "srun torchrun --nnodes 2 --nproc-per-node 4 train.py --num-workers 2\n"
    script.write_text(f"#SBATCH --nodes=2\n#SBATCH --gpus-per-node=mi300x:4\n{line}")
    (tmp_path / "job.toml").write_text(job_file([str(script)], tmp_path)[0])
    job = load_job(tmp_path / "job.toml")
    assert [(node.device, node.count) for node in job.cluster.nodes] == [("mi300x", 4)] * 2
    assert job.launch.timeout_s == 900, "a job for GPUs"
    script.write_text(f"#SBATCH --gres=gpu:a100:4\n{line}")
    text, notes = job_file([str(script)], tmp_path)
    assert tomllib.loads(text)["cluster"]["nodes"][0]["device"] == "a100"
    assert (
        "cluster: 'a100' is assumed to be a100; "
        "if the GPU is a100-40g, a100-pcie, a100-pcie-40g instead, write that name" in notes
    )
    script.write_text(f"#SBATCH --gres=gpu:rtx4000:4\n{line}")
    text, notes = job_file([str(script)], tmp_path)
    assert tomllib.loads(text)["cluster"]["nodes"][0]["device"] == "rtx4000"
    (said,) = [note for note in notes if note.startswith("cluster: ")]
    assert "GPUs of the unknown kind 'rtx4000'; write the most similar device of" in said


ASKS = [
    ("srun --gres=gpu:a100:8 torchrun --nproc-per-node 8 train.py --num-workers 2", [8], "a100"),
    ("srun -N2 --gpus-per-node h100:4 python train.py --num-workers 2", [4, 4], "h100"),
    ("srun -N2 --gpus-per-node=8 -C a100 torchrun --nnodes 2 train.py --num-workers 2", [8, 8], "a100"),
    ("srun -N2 --gpus-per-node=8 torchrun --nnodes 2 train.py --num-workers 2", [8, 8], "GPU"),
    ("docker run --gpus all image torchrun --nproc-per-node 4 train.py --num-workers 2", [4], "GPU"),
    ("podman run --device nvidia.com/gpu=all i torchrun --nproc-per-node 4 train.py --num-workers 2", [4], "GPU"),
    ("podman run --device nvidia.com/gpu=0 --device=nvidia.com/gpu=3 i python train.py --num-workers 2", [2], "GPU"),
    ("apptainer exec --nv some.sif python train.py --num-workers 2", [1], "GPU"),
    ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 train.py --num-workers 2", [2], "GPU"),
    ("CUDA_VISIBLE_DEVICES= torchrun --nproc-per-node 2 train.py --num-workers 2", [2], "cpu"),
    ("CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node=gpu train.py --num-workers 2", [2], "GPU"),
    ("CUDA_VISIBLE_DEVICES=2,3 deepspeed train.py --deepspeed --deepspeed_config ds.json", [2], "GPU"),
    ("torchrun --nproc-per-node 8 train.py --num-workers 2", [8], "cpu"),
    ("vllm serve nobody/Llama-3.1-8B --tensor-parallel-size 4", [4], "GPU"),
    ("python train.py --num-workers 2", [1], "cpu"),
]


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("torchrun --nproc-per-node 8 /opt/Megatron-LM/pretrain_gpt.py --micro-batch-size 2", True),
        ("torchrun --nproc-per-node 8 train.py --num-workers 2 --fp16", True),
        ("torchrun --nproc-per-node 8 train.py --num-workers 2 --backend nccl", True),
        ("deepspeed --num_gpus 8 train.py --num-workers 2", True),
        ("torchrun --nproc-per-node 8 train.py --num-workers 2", False),
    ],
)
def test_a_job_of_cpu_ranks_whose_line_looks_like_gpus_has_the_time_that_these_take(tmp_path, driver, line, written):
    """Made on a login node, with a kind of GPU written in, its experiments were ended after two minutes."""
    driver("exit 9")
    text, notes = job_file(shlex.split(line), tmp_path)
    assert tomllib.loads(text)["cluster"]["nodes"][0]["device"] == "cpu"
    assert tomllib.loads(text)["launch"].get("timeout_s", 0) == 900 * written
    assert any("for GPUs write nodes" in note and "timeout_s = 900" in note for note in notes)


@pytest.mark.parametrize(("line", "counts", "kind"), ASKS)
def test_a_line_that_asks_for_gpus_is_no_job_of_cpus(tmp_path, driver, line, counts, kind):
    """On a login node, which has none, the job was of as many CPU ranks."""
    driver("exit 9")
    text, notes = job_file(shlex.split(line), tmp_path)
    nodes = tomllib.loads(text)["cluster"]["nodes"]
    assert [(node["device"], node["count"]) for node in nodes] == [(kind, count) for count in counts]
    said = [note for note in notes if note.startswith("cluster: ") and "no GPU" in note]
    assert bool(said) == (kind in ("GPU", "cpu"))
    assert all(f"{{ device = 'a100', count = {counts[0]} }}" in note for note in said)
    (tmp_path / "job.toml").write_text(text)
    if kind == "GPU":
        with pytest.raises(AutoscoutError, match=r"device = 'GPU' is unknown; known: a10, a100, .*memory_gib"):
            load_job(tmp_path / "job.toml")
    driver("for i in 0 1 2 3 4 5 6 7; do echo $i, GPU-$i, NVIDIA H100 80GB HBM3, 0, 81559; done")
    nodes = tomllib.loads(job_file(shlex.split(line), tmp_path)[0])["cluster"]["nodes"]
    assert {node["device"] for node in nodes} == {kind if kind == "a100" else "h100"}


@pytest.mark.parametrize(
    ("name", "mib", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, "a100"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40g"),
        ("NVIDIA A100-SXM4-80GB", "[N/A]", "a100"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "rtx-pro-6000"),
        ("NVIDIA GB200", 189471, "gb200"),
        ("NVIDIA L40S", 46068, "l40s"),
        ("NVIDIA L4", 23034, "l4"),
        ("NVIDIA GH200 480GB", 97871, "gh200"),
        ("NVIDIA GH200 120GB", 97871, "gh200"),
        ("NVIDIA H100 NVL", 95830, "h100-nvl"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada"),
        ("NVIDIA X900", 97871, "GPU"),
    ],
)
def test_the_kind_of_this_machines_gpus(tmp_path, driver, name, mib, kind):
    """A100s of 80 GB were taken for those of 40, and GeForce cards for none that is known."""
    driver(f"echo '0, GPU-0, {name}, 0, {mib}'")
    text, _ = job_file(shlex.split("vllm serve nobody/Llama-3.1-8B"), tmp_path)
    assert tomllib.loads(text)["cluster"]["nodes"] == [{"device": kind, "count": 1}]


def test_gpus_of_a_kind_that_nobody_knows_are_no_cpus(tmp_path, driver):
    driver("echo 0, GPU-0, NVIDIA GeForce GTX 1650, 0, 24564")
    text, notes = job_file(shlex.split("python train.py --num-workers 2"), tmp_path)
    assert tomllib.loads(text)["cluster"]["nodes"] == [{"device": "GPU", "count": 1}]
    assert any(note.startswith("cluster: this machine's GPUs are of an unknown kind: write") for note in notes)


def test_a_batch_script_whose_gpus_have_no_kind_asks_for_it(tmp_path, driver):
    driver("exit 9")
    script = tmp_path / "run.sbatch"
    for head, kind in (("", "GPU"), ("#SBATCH --partition=gpu_h100\n", "h100"), ("#SBATCH -C 'v100&ib'\n", "v100")):
        script.write_text(f"#SBATCH --nodes=2 --gpus-per-node=4\n{head}srun python train.py --num-workers 2\n")
        made = tomllib.loads(job_file([str(script)], tmp_path)[0])
        assert [(n["device"], n["count"]) for n in made["cluster"]["nodes"]] == [(kind, 4)] * 2


def test_a_host_file_of_nonsense_is_said(folder):
    (folder / "hosts").write_text("node1 slots=many\n")
    found = devices(read("deepspeed --hostfile hosts --num_nodes 2 --num_gpus 8 train.py", "launch.current"))
    assert found.counts == [8, 8]
    assert "line 1: 'node1 slots=many'" in found.notes[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torchrun --nproc-per-node '$GPUS' train.py --mbs 2", False),
        ("deepspeed train.py --mbs 2", False),
        ("python -m openrlhf.cli.train_ppo_ray --actor.num_gpus_per_node 8 --mbs 2", True),
        ("torchrun --nproc-per-node 1 train.py --mbs 2", True),
        ("srun --gres=gpu:4 python train.py --mbs 2", True),
    ],
)
def test_devices_that_a_line_does_not_say_are_not_one_in_silence(folder, line, said):
    notes = job_file(shlex.split(line), folder)[1]
    assert any("does not give the number of devices" in note for note in notes) != said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torchrun --nnodes '$NNODES' --nproc-per-node 8 train.py --mbs 2", "--nnodes $NNODES"),
        ("torchrun --nnodes 1:4 --nproc-per-node 8 train.py --mbs 2", "--nnodes 1:4"),
        ("accelerate launch --num_machines '$N' --num_processes 8 train.py --mbs 2", "--num_machines $N"),
        ("torchrun --nproc-per-node 8 train.py --nodes a,b --mbs 2", ""),
        ("torchrun --nnodes 2 --nproc-per-node 8 train.py --mbs 2", ""),
    ],
)
def test_nodes_that_a_line_does_not_say_as_a_number_are_not_one_in_silence(folder, line, said):
    notes = job_file(shlex.split(line), folder)[1]
    assert any(f"the launch line's {said} is assumed to be one node" in note for note in notes) == bool(said)


@pytest.mark.parametrize(("is_here", "kind"), [(True, "cpu"), (False, "GPU")])
def test_a_server_runs_on_processors_only_where_its_engine_is(tmp_path, driver, monkeypatch, is_here, kind):
    """`--tensor-parallel-size 4` became four CPU ranks on a machine that has neither a GPU nor vLLM."""
    driver("exit 9")
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin/python3").symlink_to(sys.executable)
    (tmp_path / "bin/vllm").write_text(f"#!{tmp_path}/bin/python3\n")
    (tmp_path / "bin/vllm").chmod(0o755)
    (tmp_path / "lib/python3.13/site-packages" / ("vllm" if is_here else "torch")).mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    made = tomllib.loads(job_file(shlex.split("vllm serve nobody/Llama-3.1-8B --tensor-parallel-size 4"), tmp_path)[0])
    assert made["cluster"]["nodes"] == [{"device": kind, "count": 4}]


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("python train.py --actor-num-nodes 1 --actor-num-gpus-per-node 4 --rollout-num-gpus 4", [8]),
        ("python train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 --colocate", [8, 8]),
        (
            "ray job submit -- python -m openrlhf.cli.train_ppo_ray --ref_num_nodes 1 --ref_num_gpus_per_node 2 "
            "--actor_num_nodes 1 --actor_num_gpus_per_node 2 --vllm_num_engines 2 --vllm_tensor_parallel_size 2",
            [8],
        ),
        (
            "python -m openrlhf.cli.train_ppo_ray --ref_num_nodes 1 --ref_num_gpus_per_node 4 --actor_num_nodes 1 "
            "--actor_num_gpus_per_node 4 --vllm_num_engines 1 --vllm_tensor_parallel_size 2 --colocate_actor_ref",
            [6],
        ),
        ("uv run python run_grpo.py cluster.num_nodes=2 cluster.gpus_per_node=8 grpo.x=1", [8, 8]),
    ],
)
def test_trainers_on_a_ray_cluster_say_the_devices_of_each_role(line, counts):
    """They were said to give none, and one processor was written."""
    assert devices(Line(tuple(line.split()))).counts == counts


def test_of_a_heterogeneous_job_the_first_component_counts(tmp_path):
    """Its options were those of the last component, whatever the line before the colon runs on."""
    text = "#SBATCH --nodes=2 --gpus-per-node=h100:8\n#SBATCH hetjob\n#SBATCH --nodes=1 --gpus-per-node=l40s:4\n"
    assert asked(text) == Batch(2, 8, "h100")
    with pytest.raises(AutoscoutError, match="several components of a heterogeneous job"):
        job_file(shlex.split("srun --het-group=0 torchrun t.py : --het-group=1 vllm serve m"), tmp_path)
