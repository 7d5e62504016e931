"""What is exported runs what was measured."""

import json
import math
import shlex
import subprocess
import tomllib
from pathlib import Path

import msgspec
import pytest
import yaml

from autoscout.deploy.export import launch, written
from autoscout.machine.starting import job_file
from autoscout.space.explain import completed
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import Cluster, Configuration, Node

JOBS = ["llama-3.2-3b", "qwen3-30b-a3b", "tiny-gpt-cpu"]


@pytest.mark.parametrize("name", JOBS)
def test_every_knob_of_the_configuration_is_in_the_command(name):
    job = load_job(f"fixtures/jobs/{name}.toml")
    space = JobSpace.of_job(job)
    configuration = completed(space, {"tp": 2, "sp": True, "ar": "full", "mbs": 1}, space.reference)
    found = launch(job, configuration, space.name(configuration), "measured")
    assert found.arguments["--tensor-model-parallel-size"] == 2
    assert found.arguments["--sequence-parallel"] is True
    assert found.arguments["--recompute-granularity"] == "full"
    expected = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if "cpu" not in name else {"OMP_NUM_THREADS": "1"}
    assert expected.items() <= found.environment.items()
    knobs = configuration.knobs
    assert sum(found.devices) == math.prod(int(knobs.get(n, 1)) for n in ("tp", "pp", "cp", "dp"))


def test_two_configurations_that_differ_are_two_commands():
    job = load_job("fixtures/jobs/smallest-cpu.toml")
    commands = [written(job, launch(job, c, "", ""), "command") for c in JobSpace.of_job(job).configurations()]
    assert len(set(commands)) == len(commands)


def test_the_formats_say_the_same():
    job = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
    configuration = Configuration({"pp": 2, "tp": 1, "cp": 1, "dp": 2, "mbs": 2, "ddp_bucket": 8, "overlap_grad": True})
    found = launch(job, configuration, "pp2", "said 'so'; $(not run)")
    as_json = json.loads(written(job, found, "json"))
    assert as_json["arguments"]["--ddp-bucket-size"] == 8 * 2**20 / 4
    command = written(job, found, "command")
    words = shlex.split(command, comments=True)
    for flag, value in found.arguments.items():
        assert flag in words
        assert value is True or words[words.index(flag) + 1] in (
            str(value),
            *(value if isinstance(value, list) else []),
        )
        assert f"{flag.removeprefix('--')}: {json.dumps(value)}" in written(job, found, "yaml")
        assert flag in written(job, found, "slurm")


@pytest.mark.parametrize("form", ["command", "slurm", "yaml"])
@pytest.mark.parametrize("name", ["llama-3-8b-serve", "tiny-gpt-cpu"])
def test_no_text_begins_a_line_of_its_own(name, form):
    """A measurement that a colleague shared had a newline in its name, and a command behind it."""
    job = load_job(f"fixtures/jobs/{name}.toml")
    hostile = "x\ntouch owned\u2028touch owned\r#\x1b[2J"
    found = launch(job, JobSpace.of_job(job).reference, hostile, hostile)
    lines = written(job, msgspec.structs.replace(found, job=hostile), form).splitlines()
    assert not [line for line in lines if line.startswith("touch")]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("form", ["command", "slurm"])
def test_scripts_are_valid_shell(tmp_path: Path, form):
    job = load_job("fixtures/jobs/qwen3-30b-a3b.toml")
    space = JobSpace.of_job(job)
    script = tmp_path / "run.sh"
    script.write_text(written(job, launch(job, space.reference, "x", "measured"), form))
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_a_target_without_a_launch_is_one_sentence():
    job = msgspec.structs.replace(load_job("fixtures/jobs/tiny-gpt-cpu.toml"), target="deepspeed")
    with pytest.raises(Exception, match="no export for target"):
        launch(job, Configuration({"mbs": 1}), "", "")


# ---- serving ----------------------------------------------------------------------------------------------


def serving(name="llama-3-8b-serve"):
    job = load_job(f"fixtures/jobs/{name}.toml")
    space = JobSpace.of_job(job)
    configuration = space.reference
    return job, configuration, launch(job, configuration, space.name(configuration), "measured")


def manifest_of(name):
    job, _, found = serving(name)
    return written(job, found, "k8s")


def words_of(job, found):
    return shlex.split(written(job, found, "command").replace("\\\n", " "), comments=True)


def test_a_serving_winner_is_the_server_that_was_measured():
    from autoscout.targets.vllm import arguments

    job, configuration, found = serving()
    words = words_of(job, found)
    measured = arguments.serve_command(job, "MODEL", arguments.engine_arguments(job, configuration), 1)
    assert words[words.index("serve") + 2 :] == measured[measured.index("--served-model-name") + 2 :]
    assert json.loads(written(job, found, "json"))["arguments"]["--max-num-seqs"] == configuration.knobs["max_num_seqs"]


def test_a_yaml_file_has_every_rendered_file():
    """Each stood under a key `files` of its own, of which readers of YAML keep one."""
    job = load_job("fixtures/jobs/smallest-cpu.toml")
    files = {"a.json": "{}", "b.yaml": "x: 1\n"}
    found = msgspec.structs.replace(launch(job, JobSpace.of_job(job).reference, "", ""), files=files)
    assert yaml.safe_load(written(job, found, "yaml"))["files"] == files


def test_the_yaml_file_has_every_flag_in_vllms_own_form():
    job, _, found = serving("tiny-llama-serve-cpu")
    said = dict(line.split(": ", 1) for line in written(job, found, "yaml").splitlines() if not line.startswith("#"))
    for flag, value in found.arguments.items():
        name = flag.removeprefix("--")
        if name.startswith("no-"):
            assert said[name.removeprefix("no-")] == "false"
        else:
            assert json.loads(said[name]) == value
    assert json.loads(said["model"]) == "MODEL"


def test_the_manifest_runs_the_same_words_on_as_many_gpus():
    job, _, found = serving()
    manifest = written(job, found, "k8s")
    assert manifest.count("apiVersion:") == 2
    args = [json.loads(line.strip()[2:]) for line in manifest.splitlines() if line.startswith('            - "')]
    words = words_of(job, found)
    assert args[6:] == words[words.index("serve") + 2 :]
    assert f'"nvidia.com/gpu": {sum(found.devices)}' in manifest
    assert "nvidia.com/gpu" not in manifest_of("tiny-llama-serve-cpu")


def test_a_compose_file_is_read_back_as_the_launch_that_it_is(tmp_path):
    """Who serves from a compose file gets one back."""
    job, _, found = serving()
    found = msgspec.structs.replace(found, environment={**found.environment, "KEY": "a$b"})
    service = yaml.safe_load(text := written(job, found, "compose"))["services"]["llama-3-8b-serve"]
    assert service["environment"]["KEY"] == "a$$b"
    given = service["deploy"]["resources"]["reservations"]["devices"]
    assert given == [{"driver": "nvidia", "count": sum(found.devices), "capabilities": ["gpu"]}]
    (tmp_path / "compose.yaml").write_text(text)
    again = tomllib.loads(job_file([str(tmp_path / "compose.yaml")], tmp_path)[0])
    assert again["cluster"]["nodes"] == [{"device": "GPU", "count": sum(found.devices)}]
    said = shlex.split(again["launch"]["current"])
    words = words_of(job, found)
    assert said[said.index("serve") + 6 :] == words[words.index("serve") + 2 :]
    amd = msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="mi300x", count=8)]))
    assert "/dev/kfd" in written(amd, launch(amd, JobSpace.of_job(amd).reference, "", ""), "compose")
    cpu, _, plain = serving("tiny-llama-serve-cpu")
    assert not {"deploy", "devices"} & yaml.safe_load(written(cpu, plain, "compose"))["services"][plain.job].keys()


def test_amds_gpus_are_asked_for_by_their_name_and_run_no_image_of_cuda():
    """A server on MI300X was to run vllm/vllm-openai, which is built for CUDA, on nvidia.com/gpu."""
    job, _, _ = serving()
    job = msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="mi300x", count=8)]))
    measured = launch(job, JobSpace.of_job(job).reference, "x", "", environment={"vllm": "0.19.0"})
    manifest = written(job, measured, "k8s")
    assert '"amd.com/gpu": 8' in manifest
    assert 'image: "IMAGE"' in manifest
    assert "an image with vLLM for ROCm, such as AMD's rocm/vllm, instead of IMAGE" in manifest
    assert "nvidia" not in manifest
    assert "vllm-openai" not in manifest
    trained = load_job("fixtures/jobs/llama-3.2-3b.toml")
    trained = msgspec.structs.replace(trained, cluster=job.cluster)
    jobset = written(trained, launch(trained, JobSpace.of_job(trained).reference, "", ""), "jobset")
    assert '"amd.com/gpu": 8' in jobset
    assert (
        "# replace the image with your own, and needs ROCm (AMD's images: rocm/primus and rocm/megatron-lm);" in jobset
    )


def test_a_training_job_has_no_manifest():
    job = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
    with pytest.raises(Exception, match="--format 'k8s'"):
        written(job, launch(job, Configuration({"mbs": 1}), "", ""), "k8s")


def test_a_serving_script_is_valid_shell(tmp_path: Path):
    for form in ("command", "slurm"):
        (tmp_path / form).write_text(written(serving()[0], serving()[2], form))
        subprocess.run(["bash", "-n", str(tmp_path / form)], check=True)


@pytest.mark.parametrize("name", ["llama-3.2-3b", "llama-3-8b-serve", "tiny-gpt-cpu"])
def test_variables_of_the_job_are_in_every_launch(name):
    """They were left out of training and serving without a word."""
    job = load_job(f"fixtures/jobs/{name}.toml")
    own = msgspec.structs.replace(job.launch, environment={"NCCL_ALGO": "Ring"})
    job = msgspec.structs.replace(job, launch=own)
    found = launch(job, JobSpace.of_job(job).reference, "", "")
    assert found.environment["NCCL_ALGO"] == "Ring"
    assert "export NCCL_ALGO=Ring" in written(job, found, "command")


def exported(job):
    return launch(job, JobSpace.of_job(job).reference, "x", "measured").missing


def test_a_training_is_told_what_its_shape_does_not_say_of_the_model():
    """Llama and Qwen went on with Megatron-LM's rotary base of 10000, and experts that nothing balances."""
    dense, mixture = (load_job(f"fixtures/jobs/{name}.toml") for name in ("llama-3.2-3b", "qwen3-30b-a3b"))
    latent = load_job("fixtures/jobs/deepseek-v2-lite.toml")
    of_positions = [next(text for text in exported(job) if "--rotary-base" in text) for job in (dense, latent)]
    assert all("10000" in text and "--norm-epsilon" in text for text in of_positions)
    assert ("--use-rope-scaling" in of_positions[0], "--rotary-scaling-factor" in of_positions[1]) == (True, True)
    balanced = "--moe-router-load-balancing-type instead of none"
    assert not any(balanced in text for text in exported(dense))
    assert any(text.startswith(balanced) for text in exported(mixture))
    said = "torchrun --nproc-per-node 12 pretrain_gpt.py --micro-batch-size 1 --rotary-base 1000000 --norm-epsilon 1e-6"
    own = msgspec.structs.replace(mixture, launch=msgspec.structs.replace(mixture.launch, current=said))
    assert not any("--rotary-base" in text for text in exported(own)), "the line says what its person's model has"
    assert any(text.startswith(balanced) for text in exported(own))
    balances = msgspec.structs.replace(own.launch, current=f"{said} --moe-router-load-balancing-type aux_loss")
    assert not any(balanced in text for text in exported(msgspec.structs.replace(own, launch=balances)))
