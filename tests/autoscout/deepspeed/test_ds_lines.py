"""`init` of DeepSpeed lines whose script runs inside of something: a container, a binding of processors."""

import json
import shlex
import tomllib

import pytest

from autoscout.machine.starting import job_file
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import reference_of, target_of


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """([launch] of a line's job, the command of its first experiment, notes on where it runs)"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 16, "zero_optimization": {"stage": [0, 1]}}))
    (tmp_path / "train.py").touch()

    def begun(line: str):
        text, notes = job_file(shlex.split(f"{line} --deepspeed_config ds.json"), tmp_path)
        (tmp_path / "job.toml").write_text(text.replace('"GPU"', '"cpu"'))
        job = load_job(tmp_path / "job.toml")
        shown = target_of(job).probe_line(job, JobSpace.of_job(job).reference, tmp_path / "experiment.json")
        words = shlex.split(shown.partition("OMP_NUM_THREADS=1 ")[2])
        return tomllib.loads(text)["launch"], words, [n for n in notes if n.startswith("launch.command_prefix: ")]

    return begun


@pytest.mark.parametrize(
    ("line", "prefix", "mounted"),
    [
        ("apptainer exec --nv i.sif deepspeed --num_gpus 2", "apptainer exec --nv i.sif", True),
        (
            "docker run -it --gpus all x/deepspeed deepspeed --num_gpus 2",
            "docker run --rm --gpus all x/deepspeed",
            True,
        ),
        ("docker run --name=a --rm -t x/d deepspeed --num_gpus 2", "docker run --rm x/d", True),
        ("docker run --name a x/d deepspeed --num_gpus 2", "docker run --rm x/d", True),
        ("numactl -i all torchrun --nproc-per-node 2", "numactl -i all", False),
        ("nsys profile -t cuda torchrun --nproc-per-node 2", "nsys profile -t cuda", False),
        ("srun -N1 env A=1 torchrun --nproc-per-node 2", "env A=1", False),
        ("srun -N1 --export=ALL,A=1 torchrun --nproc-per-node 2", "env A=1", False),
        ("mpirun -np 2 -x A=1 -x B=2 python", "env A=1 B=2", False),
        ("srun -N1 conda run -n x torchrun --nproc-per-node 2", "conda run -n x", False),
        ("numactl --interleave=all torchrun --nproc-per-node 2", "numactl --interleave=all", False),
        ("uv run torchrun --nproc-per-node 2", "uv run", False),
        ("srun -N1 --container-image=a:1 torchrun --nproc-per-node 2", "srun -N1 --container-image=a:1", True),
        (
            "srun --gres=gpu:2 singularity exec i.sif accelerate launch --num_processes 2",
            "singularity exec i.sif",
            True,
        ),
        ("srun -m block torchrun --nproc-per-node 2", "", False),
        ("mpirun -np 2 python", "", False),
        ("nsys profile -o x torchrun --nproc-per-node 2", "nsys profile -o x", False),
        ("torchrun --nproc-per-node 2", "", False),
    ],
)
def test_a_script_stays_in_what_it_runs_in(begun, line, prefix, mounted):
    """srun's container was left out without a word, and every other stood between torchrun and the script."""
    launch, words, notes = begun(f"{line} train.py --layers 4")
    assert launch.get("command_prefix", []) == shlex.split(prefix)
    ours = "torchrun --nproc-per-node 2 --master-port 29500 train.py --layers 4 --deepspeed_config"
    assert shlex.join(words).startswith(f"{prefix} {ours}".strip())
    assert [note.partition(" (they are")[0] for note in notes] == (
        ["launch.command_prefix: inside the container, this folder and the experiments' folders"] if mounted else []
    )


def test_a_shell_in_a_container_takes_the_words_of_another_launcher(tmp_path, monkeypatch):
    """Its text names the words of the line's launcher by their positions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"train_batch_size": 16}')
    inner = "cd /x && torchrun --nproc-per-node 2 --master_port $PORT train.py --deepspeed_config ds.json"
    launch = tomllib.loads(job_file(["docker", "run", "i", "bash", "-c", inner], tmp_path)[0])["launch"]
    assert launch["command_prefix"] == ["docker", "run", "--rm", "i", "bash", "-c", 'cd /x && exec "$@"', "bash"]
    assert launch["command"].startswith("torchrun --nproc-per-node {gpus} --master-port {port} train.py")


def test_what_cannot_run_in_sruns_container_says_so(begun):
    line = "srun -N 2 --container-image a:1 --container-mounts=/d:/d torchrun --nproc-per-node 8 train.py"
    launch, _, (note,) = begun(line)
    assert "command_prefix" not in launch
    assert "do not run in srun's container (--container-image a:1 --container-mounts=/d:/d)" in note


@pytest.mark.parametrize("container", ["", "--container-image=a:1 "])
@pytest.mark.parametrize("tasks", ["--ntasks-per-node=4", "-n {all}"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_that_srun_starts_are_started_by_it(tmp_path, monkeypatch, nodes, tasks, container):
    """torchrun started them without a word: a script that takes its place from Slurm's variables does not start so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"train_batch_size": 32, "zero_optimization": {"stage": 2}}')
    tasks = tasks.format(all=4 * nodes)
    line = f"srun -p gpu --gres=gpu:4 --nodes={nodes} {tasks} {container}python -u train.py --launcher slurm"
    text, notes = job_file(shlex.split(f"{line} --deepspeed ds.json"), tmp_path)
    (tmp_path / "job.toml").write_text(text.replace('"GPU"', '"h100"'))
    job = load_job(tmp_path / "job.toml")
    assert (job.devices, job.cluster.hosts, job.launch.command_prefix) == (4 * nodes, "", [])
    launch = target_of(job).launch(job, JobSpace.of_job(job).reference)
    assert shlex.join(launch.program) == f"{line} --deepspeed autoscout-run/ds_config.json"
    assert any(note.startswith("launch.command: srun starts the ranks, as in your launch line") for note in notes)
    script = target_of(job).formats()["slurm"](launch)
    assert f"\n{line} " in script
    assert "#SBATCH --ntasks-per-node=4\n" in script  # with one a node srun would have to share its processors


def test_a_module_is_a_script_too(begun):
    _, words, _ = begun("accelerate launch --num_processes 2 -m pkg.train --layers 4")
    assert words[5:9] == ["-m", "pkg.train", "--layers", "4"]


@pytest.mark.parametrize(
    "launcher",
    [
        "torch.distributed.run --nproc-per-node 2",
        "accelerate.commands.launch --num_processes 2",
        "deepspeed.launcher.runner --num_gpus 2",
    ],
)
def test_a_launcher_by_its_module_is_no_script(begun, launcher):
    """torchrun started accelerate's and DeepSpeed's once per rank, each of which started all of them."""
    _, words, _ = begun(f"python -m {launcher} train.py --layers 4")
    assert words[5:8] == ["train.py", "--layers", "4"]


def test_todays_micro_batch_is_the_first(tmp_path, monkeypatch):
    """The largest was the reference, so that no gain was over what the line runs; and of 5 configurations, all of one
    stage, nothing said why."""
    monkeypatch.chdir(tmp_path)
    config = {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "zero_optimization": {"stage": 3}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    (tmp_path / "run_clm.py").touch()
    line = "torchrun --nproc-per-node 2 run_clm.py --per_device_train_batch_size 4 --gradient_accumulation_steps 4"
    text, notes = job_file(shlex.split(f"{line} --deepspeed ds.json"), tmp_path)
    assert 'ds_config: the ZeRO stage 3 is fixed; to try other stages, write "stage": "auto" in ds.json' in notes
    (tmp_path / "job.toml").write_text(text.replace('"GPU"', '"cpu"'))
    space = JobSpace.load(tmp_path / "job.toml")
    assert [recipe.knobs["mbs"] for recipe in space.recipes] == [4, 16, 1]
    assert reference_of(space.job) == "your present launch"
    other = line.replace("batch_size 4", "batch_size 6")  # no power of two: 2 was held for today's
    (tmp_path / "job.toml").write_text(job_file(shlex.split(f"{other} --deepspeed ds.json"), tmp_path)[0])
    space = JobSpace.load(tmp_path / "job.toml")
    assert (space.knob["mbs"].values, space.reference.knobs["mbs"]) == ((1, 2, 4, 6, 8), 6)
    assert reference_of(space.job) == "your present launch"
    text = (tmp_path / "job.toml").read_text().replace("global_batch = 48", "global_batch = 32")  # which 6 do not split
    (tmp_path / "job.toml").write_text(text)
    assert reference_of(load_job(tmp_path / "job.toml")) == "the reference"


@pytest.mark.parametrize("more", ["", "--deepspeed", "--deepspeed_config elsewhere.json"])
def test_a_line_without_a_ds_config_that_is_here_is_tuned_by_its_flags_and_says_so(tmp_path, more):
    """Its job had a ZeRO stage to set in a file that nothing makes, so that no verb could start or export it."""
    line = f"deepspeed --num_gpus 8 main.py --per_device_train_batch_size 4 --gradient_accumulation_steps 2 {more}"
    text, notes = job_file(shlex.split(line), tmp_path)
    (tmp_path / "job.toml").write_text(text)
    job = load_job(tmp_path / "job.toml")
    reference = JobSpace.of_job(job).reference
    assert set(reference.knobs) == {"per_device_train_batch_size", "gradient_accumulation_steps"}
    assert target_of(job).launch(job, reference).program == shlex.split(line)
    assert [note for note in notes if note.startswith("target: the line's ds_config (")]


def test_a_model_that_only_megatron_and_servers_know_leaves_a_job_that_can_be_used(begun, tmp_path):
    """It was refused by every verb."""
    latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    shape = {"num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16, "vocab_size": 102400}
    (tmp_path / "lite").mkdir()
    (tmp_path / "lite/config.json").write_text(json.dumps({"model_type": "deepseek_v2", **shape, **latent}))
    begun("torchrun --nproc-per-node 2 train.py --model_name_or_path lite")
    assert "has latent attention" in (tmp_path / "job.toml").read_text()


HF = "--per_device_train_batch_size 2 --gradient_accumulation_steps 8 --max_seq_length 512"


def of_trainer(tmp_path, config, line="deepspeed --num_gpus 8", more=""):
    """The job of a Hugging Face Trainer's line with that ds_config."""
    auto = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping"), "auto")
    (tmp_path / "zero.json").write_text(json.dumps({**auto, **config}))
    given = f"{line} train.py --deepspeed {tmp_path}/zero.json {HF} {more}"
    (tmp_path / "job.toml").write_text(job_file([given], tmp_path)[0].replace('"GPU"', '"h100"'))
    return load_job(tmp_path / "job.toml")


def test_a_trainer_offloads_with_an_optimizer_of_its_own(tmp_path):
    """Its ds_config, as LLaMA-Factory and axolotl publish it, was refused: accelerate puts DeepSpeed's Adam in place of
    torch's."""
    job = of_trainer(tmp_path, {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})
    assert JobSpace.of_job(job).reference.knobs == {"mbs": 2}
    listed = {"stage": 3, "offload_optimizer": {"device": ["none", "cpu"]}}
    space = JobSpace.of_job(of_trainer(tmp_path, {"zero_optimization": listed}))
    assert space.domain("offload_optimizer") == ("none", "cpu")


def test_stage_3s_settings_are_known_by_the_names_of_their_fields_too(tmp_path):
    """axolotl's published zero3.json was refused; DeepSpeed takes both names."""
    zero = {"stage": 3, "max_live_parameters": 0, "max_reuse_distance": 0, "gather_16bit_weights_on_model_save": True}
    job = of_trainer(tmp_path, {"_comment": "as published", "zero_optimization": zero})
    written = json.loads(
        target_of(job).launch(job, JobSpace.of_job(job).reference).files["autoscout-run/ds_config.json"]
    )
    assert written["zero_optimization"] == {
        "stage": 3,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def test_a_line_keeps_its_batch_on_the_gpus_that_a_variable_names(tmp_path):
    """Its accumulation became 1 in the present launch."""
    job = of_trainer(tmp_path, {"zero_optimization": {"stage": 2}}, "CUDA_VISIBLE_DEVICES=0,1,2 deepspeed")
    assert (job.devices, job.traffic.global_batch) == (3, 48)
    program = target_of(job).launch(job, JobSpace.of_job(job).reference).program
    assert program[program.index("--gradient_accumulation_steps") + 1] == "8"


@pytest.mark.parametrize("more", ["--sequence_parallel_size 2", "--tensor-model-parallel-size=2"])
def test_ranks_that_share_a_model_share_its_samples(tmp_path, more):
    """All of them were counted, so that the present launch accumulated twice as often as the line does."""
    job = of_trainer(tmp_path, {"zero_optimization": {"stage": 2}}, more=more)
    assert job.traffic.global_batch == 2 * 8 * 4
    program = target_of(job).launch(job, JobSpace.of_job(job).reference).program
    assert program[program.index("--gradient_accumulation_steps") + 1] == "8"
    _, notes = job_file([f"deepspeed train.py --deepspeed {tmp_path}/zero.json {HF} {more}"], tmp_path)
    assert any("write 16 samples per 2 devices" in note for note in notes)


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_stage_0_that_is_all_there_is_is_compared_with_nothing(tmp_path, monkeypatch, half):
    """The line that a person runs was refused, since stages 1 to 3 would train with another optimizer."""
    monkeypatch.chdir(tmp_path)
    config = {"train_batch_size": 32, half: {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    line = "deepspeed --num_gpus 2 train.py --deepspeed --deepspeed_config ds.json"
    (tmp_path / "job.toml").write_text(job_file(shlex.split(line), tmp_path)[0].replace('"cpu"', '"h100"'))
    assert JobSpace.of_job(load_job(tmp_path / "job.toml")).reference.knobs == {"stage": 0}
    config["zero_optimization"] = {"stage": [0, 1]}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    assert [c.knobs["stage"] for c in JobSpace.of_job(load_job(tmp_path / "job.toml")).configurations()] == [1]


@pytest.mark.parametrize(
    ("line", "replaced"),
    [
        ("accelerate launch --num_processes 2 --mixed_precision bf16", "accelerate"),
        ("deepspeed --num_gpus 2", "deepspeed"),
        ("mpirun -np 2 python", "mpirun"),
        ("srun -N2 torchrun --nproc-per-node 2", "srun"),
        ("torchrun --nproc-per-node 2", ""),
        ("srun -N1 --container-image=a:1 torchrun --nproc-per-node 2", ""),
        ("srun -N1 -n2 python", ""),
    ],
)
def test_a_launcher_is_not_replaced_in_silence(tmp_path, monkeypatch, line, replaced):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"train_batch_size": 16}')
    _, notes = job_file(shlex.split(f"{line} train.py --deepspeed_config ds.json"), tmp_path)
    said = [note for note in notes if note.startswith("launch.command: torchrun starts the ranks")]
    assert [note.split(" in place of ")[1].split(",")[0] for note in said] == ([replaced] if replaced else [])


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("deepspeed --include localhost:4,5", "4,5"),
        ("deepspeed --include=localhost:7", "7"),
        ("accelerate launch --gpu_ids 2,3 --num_processes 2", "2,3"),
        ("accelerate launch --gpu_ids all --num_processes 2", None),
        ("deepspeed --num_gpus 2", None),
    ],
)
def test_the_devices_that_a_replaced_launcher_chose_are_the_ones_that_run(begun, line, shown):
    """torchrun took the first ones, on which others may work."""
    launch, _, _ = begun(f"{line} train.py")
    assert launch.get("environment", {}).get("CUDA_VISIBLE_DEVICES") == shown


def test_a_lines_own_braces_stay(begun):
    """{question} was taken for a placeholder, and the job refused."""
    _, words, _ = begun("deepspeed --num_gpus 2 train.py --template '{question} of {}'")
    assert "{question} of {}" in words


@pytest.mark.parametrize("flag", ["--model_name_or_path", "--model", "--base_model", "--pretrained_model_name_or_path"])
def test_a_models_name_is_found_by_the_flags_that_scripts_have(tmp_path, monkeypatch, flag):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"train_batch_size": 16}')
    line = f"deepspeed --num_gpus 2 train.py {flag} meta-llama/Llama-3.1-8B --deepspeed_config ds.json"
    assert tomllib.loads(job_file(shlex.split(line), tmp_path)[0])["model"]["preset"] == "llama-3.1-8b"
