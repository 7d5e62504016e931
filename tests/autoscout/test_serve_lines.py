"""What a person's `vllm serve` line says, in every spelling: nothing of it may be lost or changed without a word."""

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_vllm_versions import VERSIONS, job_with

from autoscout.job.presets import models
from autoscout.line.launch_line import read
from autoscout.machine.starting import job_file
from autoscout.space.explain import explain, parse
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from autoscout.targets.vllm.formats import k8s, slurm
from autoscout.targets.vllm.line_flags import flags_in
from kb.records import AutoscoutError, Cluster, Configuration, Draft, Job, Model, Node, SpaceLimits

NEWEST = max(VERSIONS)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of eight H100, with an interpreter that has the arguments of the newest vLLM."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job = job_with(NEWEST, tmp_path)
    return msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="h100", count=8)]))


def says(job: Job, flags: str, **launch: Any) -> Job:
    return msgspec.structs.replace(
        job, launch=msgspec.structs.replace(job.launch, current=f"vllm serve M {flags}", **launch)
    )


def exported(job: Job) -> dict[str, Any]:
    return target_of(job).launch(job, JobSpace.of_job(job).reference).arguments


@pytest.mark.parametrize(
    ("spelled", "flag", "words"),
    [
        ("-q fp8", "--quantization", ["fp8"]),
        ("--tensor-parallel 2", "--tensor-parallel-size", ["2"]),
        ("--gpu_memory_util=0.8", "--gpu-memory-utilization", ["0.8"]),
        ("--device cuda", "--device", ["cuda"]),
        ("--enable-ep", "--enable-ep", []),
        ("-ep", "--enable-expert-parallel", []),
        ("-dcp 2", "--decode-context-parallel-size", ["2"]),
        ("-O3", "--optimization-level", ["3"]),
        ("-O=1", "--optimization-level", ["1"]),
        ("-O 0", "--optimization-level", ["0"]),
        ("-cc.cudagraph_mode=FULL", "--compilation-config.cudagraph_mode", ["FULL"]),
        ("--compilation_config.cudagraph_mode FULL", "--compilation-config.cudagraph_mode", ["FULL"]),
        ("-cc '{\"cudagraph_capture_sizes\": [1, 2]}'", "--cudagraph-capture-sizes", ["1", "2"]),
        ("--attention-config.backend FLASHINFER", "--attention-backend", ["FLASHINFER"]),
        ("--enable-chunked-prefill=False", "--no-enable-chunked-prefill", []),
        ("--enable-chunked-prefill True", "--enable-chunked-prefill", []),
        ("--max-model-len 40k", "--max-model-len", ["40000"]),
        ("--max-model-len=32K", "--max-model-len", ["32768"]),
        ("--max-num-batched-tokens 1.5k", "--max-num-batched-tokens", ["1500"]),
        ("--kv-cache-memory-bytes 20G", "--kv-cache-memory-bytes", [str(20 * 2**30)]),
        ("--kv-cache-dtype fp8_e4m3", "--kv-cache-dtype", ["fp8"]),
        ('-sc \'{"method": "deepseek_mtp"}\'', "--speculative-config.method", ["mtp"]),
        ("--gpu-memory-utilization .9", "--gpu-memory-utilization", [".9"]),
    ],
)
def test_every_spelling_is_the_same_flag(spelled, flag, words):
    """Short options, vLLM's 32k and dotted fields with underscores were not known, and dropped without a word."""
    assert flags_in(read(f"vllm serve M {spelled}", "launch.current")) == {flag: words}


@pytest.mark.parametrize(
    ("said", "flag", "value"),
    [
        ("--max-model-len 40k", "--max-model-len", 40000),
        ("--dtype float16", "--dtype", "float16"),
        ("--gpu-memory-utilization .9", "--gpu-memory-utilization", 0.9),
        ("--kv-cache-memory-bytes 20G", "--kv-cache-memory-bytes", 20 * 2**30),
        ("--no-enable-prefix-caching", "--no-enable-prefix-caching", True),
        ("--kv-offloading-size 64", "--kv-offloading-size", 64),
        ("--cudagraph-capture-sizes 1 2 4", "--cudagraph-capture-sizes", [1, 2, 4]),
        ("-O3", "--optimization-level", 3),
        ("--numa-bind -tp 8", "--numa-bind", True),
        ("--disable-log-stats", "--disable-log-stats", True),
        ("-pp 2 --no-async-scheduling", "--no-async-scheduling", True),
        ("-pp 2 --async-scheduling", "--async-scheduling", True),
        ("--seed 42", "--seed", "42"),
        ("--tokenizer T", "--tokenizer", "T"),
        ("--port 9000", "--port", "9000"),
        ("--allowed-origins '[\"*\"]'", "--allowed-origins", '["*"]'),
        ("--no-enable-log-requests", "--no-enable-log-requests", True),
        (
            """--lora-modules '{"name": "a"}' '{"name": "b"}'""",
            "--lora-modules",
            ['{"name": "a"}', '{"name": "b"}'],
        ),
    ],
)
def test_what_the_line_says_is_exported(engine, said, flag, value):
    """Sizes such as 40k, the dtype, and what a knob sets that never acts in this job, were left out."""
    assert exported(says(engine, said))[flag] == value


def test_fields_beside_a_knobs_stay(engine):
    """A knob sets one field of the compilation; all the others of the line were dropped."""
    passes = '{"pass_config": {"fuse_act_quant": true}, "custom_ops": ["all"]}'
    line = f"-cc '{passes}' -cc.pass_config.eliminate_noops=true"
    fields = json.loads(exported(says(engine, line))["--compilation-config"])
    assert fields["pass_config"] == {"fuse_act_quant": True, "eliminate_noops": True}
    assert fields["custom_ops"] == ["all"]
    assert fields["cudagraph_mode"] == "FULL_AND_PIECEWISE"


def test_settings_of_guessing_go_with_their_method(engine):
    job = says(engine, """-sc '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2}'""")
    space = JobSpace.of_job(job)
    assert json.loads(exported(job)["--speculative-config"])["prompt_lookup_min"] == 2
    plain = msgspec.structs.replace(space.reference, knobs={**space.reference.knobs, "spec": "none"})
    plain.knobs.pop("spec_tokens")
    assert "--speculative-config" not in target_of(job).launch(job, plain).arguments


def test_a_knob_that_the_line_leaves_nothing_to_decide_is_closed(engine):
    """vLLM does not start with capture sizes and another largest one, and sizes its cache by one number only."""
    plain = JobSpace.of_job(says(engine, "--max-num-seqs 64")).knob
    for said, knob in (
        ("--cudagraph-capture-sizes 1 2 4", "graph_size"),
        ("--kv-cache-memory-bytes 9G", "gpu_memory_utilization"),
    ):
        space = JobSpace.of_job(says(engine, said))
        assert (knob in plain, knob in space.knob) == (True, False)
        assert space.closed[knob] == f"{knob} is decided by {said.split()[0]} in launch.current"


def test_a_line_without_a_dtype_takes_the_models(engine):
    """A model that is stored in float16 was served in bfloat16."""
    assert exported(says(engine, "--max-num-seqs 64"))["--dtype"] == "auto"
    with pytest.raises(AutoscoutError, match=r"has --dtype float32, but model.dtype is 'bf16'"):
        checked(says(engine, "--dtype float32"))


def checked(job: Job) -> None:
    for problem in target_of(job).problems(job):
        raise AutoscoutError(problem, 2)


def test_a_file_of_settings_must_be_written_out(engine):
    with pytest.raises(AutoscoutError, match=r"write the settings of c.yaml as flags"):
        checked(says(engine, "--config c.yaml"))


def test_several_nodes_stay_as_the_line_has_them(engine):
    """Ray was added, with which vLLM refuses --nnodes, and 16 engines became one of 16 devices without a word."""
    job = msgspec.structs.replace(engine, cluster=Cluster(nodes=[Node(device="h100", count=8)] * 2))
    found = exported(says(job, "-tp 8 -pp 2 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1"))
    assert "ray" not in found.values()
    assert (found["--nnodes"], found["--tensor-parallel-size"]) == (2, 8)
    given = says(job, "-dp 16 -dpl 8 -dpa 10.0.0.1")
    found = exported(given)
    assert "ray" not in found.values()
    assert (found["--data-parallel-size"], found["--data-parallel-size-local"]) == (16, 8)
    launch = target_of(given).launch(given, JobSpace.of_job(given).reference)
    assert "ray start" not in slurm(launch)
    assert "the commands of the other nodes, with the same settings" in launch.missing
    with pytest.raises(AutoscoutError, match="a Kubernetes Deployment cannot span"):
        k8s(launch)
    assert exported(says(engine, "-dp 8 -dpl 8"))["--data-parallel-size-local"] == 8


def test_an_engine_on_one_node_takes_no_workers_from_ray(engine):
    """A line's Ray stayed, and the Slurm script started it on no other node."""
    backends = "--distributed-executor-backend ray --data-parallel-backend=ray"
    given = says(engine, f"-tp 4 -dp 2 {backends}")
    assert "ray" not in slurm(target_of(given).launch(given, JobSpace.of_job(given).reference))
    assert "mp" in exported(says(engine, "--distributed-executor-backend mp")).values()
    two = msgspec.structs.replace(engine, cluster=Cluster(nodes=[Node(device="h100", count=8)] * 2))
    found = exported(says(two, f"-tp 8 -pp 2 --nnodes 2 {backends}"))
    assert found["--distributed-executor-backend"] == "ray"


@pytest.mark.parametrize("line", ["vllm serve Qwen/Qwen3-32B -tp 8", "vllm serve -tp 8 --model Qwen/Qwen3-32B"])
def test_the_model_that_the_line_names_is_exported(engine, line):
    """It was MODEL, to be filled in, beside the variable of the script that had named it."""
    own = {"MODEL": "Qwen/Qwen3-32B", "HF_HOME": "/hf", "EMPTY": ""}
    given = says(engine, "", environment=own)
    given = msgspec.structs.replace(given, launch=msgspec.structs.replace(given.launch, current=line, model_path=""))
    launch = target_of(given).launch(given, JobSpace.of_job(given).reference)
    assert launch.program == ["vllm", "serve", "Qwen/Qwen3-32B"]
    assert not any("MODEL" in what for what in launch.missing)
    assert "MODEL" not in launch.environment
    assert {"HF_HOME", "EMPTY"} <= launch.environment.keys()


@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_a_method_of_guessing_that_no_knob_has_stays(engine, method):
    """It was neither measured nor exported, in silence."""
    guesses = {"method": method, "num_speculative_tokens": 4}
    job = says(engine, f"-tp 2 --speculative-config '{json.dumps(guesses)}'")
    assert json.loads(exported(job)["--speculative-config"]) == guesses
    assert any("predictions ignore --speculative-config" in note for note in target_of(job).notes_on_job(job))


def test_engines_over_nodes_stay_what_the_line_starts(tmp_path):
    """Beside --data-parallel-size-local a pipeline over the nodes looked nearer to the line than its two engines, and
    the experts that engines share were counted for each, so that it was said not to start."""
    line = "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -dp 2 -dpl 1 --data-parallel-address 10.0.0.1 -ep"
    text, _ = job_file([line], tmp_path)
    (tmp_path / "job.toml").write_text(text.replace('"GPU"', '"h100"'))
    job = load_job(tmp_path / "job.toml")
    assert JobSpace.of_job(job).reference.knobs.items() >= {"tp": 8, "pp": 1, "dp": 2, "ep": True}.items()
    assert not any("not start" in note or "not valid" in note for note in target_of(job).notes_on_job(job))


def test_a_default_that_gives_way_to_the_same_run_is_no_invalid_line(engine):
    notes = target_of(engine).notes_on_job(says(engine, "-tp 2"))
    assert any("is measured with --max-num-seqs 64: 64 users never have 1024" in note for note in notes)
    assert not any("not valid" in note for note in notes)


def test_another_number_of_engines_than_the_line_says_is_told(engine):
    notes = target_of(engine).notes_on_job(says(engine, "-tp 2 -dp 3"))
    assert any("the nearest valid configuration is used instead, with --data-parallel-size 4" in note for note in notes)


def test_a_port_of_the_line_is_not_that_of_a_pod(engine):
    job = says(engine, "--port 9000 --host 127.0.0.1")
    text = k8s(target_of(job).launch(job, JobSpace.of_job(job).reference))
    assert '"9000"' not in text
    assert '"127.0.0.1"' not in text


def test_a_flag_that_the_installed_server_lacks_is_told_and_left_out(engine, tmp_path):
    """The export of a line with --swap-space did not start with a vLLM that has it no more."""
    package = tmp_path / "packages" / "vllm"
    (package / "entrypoints" / "openai").mkdir(parents=True)
    for folder in (package / "entrypoints", package / "entrypoints" / "openai"):
        (folder / "__init__.py").touch()
    (package / "utils.py").write_text("from argparse import ArgumentParser as FlexibleArgumentParser\n")
    (package / "entrypoints" / "openai" / "cli_args.py").write_text(
        "def make_arg_parser(parser):\n    parser.add_argument('--api-key')\n    return parser\n"
    )
    job = says(engine, "--swap-space 16 --api-key k", python=f"{tmp_path}/./python")
    found = target_of(job).launch(job, JobSpace.of_job(job).reference)
    assert found.arguments["--api-key"] == "k"
    assert "--swap-space" not in found.arguments
    assert "a replacement for --swap-space in your line, which the installed vLLM does not have" in found.missing
    assert any(note.startswith("launch.current has --swap-space") for note in target_of(job).notes_on_job(job))


def made(tmp_path: Path, line: str) -> tuple[dict[str, Any], list[str]]:
    text, notes = job_file([line], tmp_path)
    (tmp_path / "job.toml").write_text(text)
    return tomllib.loads(text), notes


@pytest.mark.parametrize(
    ("said", "draft"),
    [
        ('{"method": "eagle3", "model": "E"}', Draft(method="eagle3", model="E")),
        ('{"method": "deepseek_mtp"}', Draft(method="mtp")),
        ('{"model": "yuhuili/EAGLE3-LLaMA3.1"}', Draft(method="eagle3", model="yuhuili/EAGLE3-LLaMA3.1")),
        ('{"model": "Qwen/Qwen3-0.6B"}', Draft(method="draft_model", model="Qwen/Qwen3-0.6B")),
        ('{"method": "ngram"}', None),
    ],
)
def test_what_guesses_in_the_line_is_the_jobs_draft(tmp_path, said, draft):
    """The line's draft was named nowhere, so that the reference served without it."""
    said = json.dumps({**json.loads(said), "num_speculative_tokens": 3})
    made(tmp_path, f"vllm serve Qwen/Qwen3-32B -tp 2 --speculative-config '{said}'")
    (tmp_path / "job.toml").write_text((tmp_path / "job.toml").read_text().replace('"GPU"', '"h100"'))
    job = load_job(tmp_path / "job.toml")
    assert job.launch.draft == draft
    if draft:
        knobs = JobSpace.of_job(job).reference.knobs
        assert (knobs["spec"], knobs["spec_tokens"]) == (draft.method, 3)


def test_a_file_of_settings_is_read_as_flags(tmp_path, monkeypatch):
    """Its settings were those of the export alone: the reference had none of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(
        "model: Qwen/Qwen3-32B\ntensor-parallel-size: 2\nserved-model-name: [a, b]\nenable-prefix-caching: false\n"
        "trust-remote-code: true\nspeculative-config:\n  method: ngram\n  num_speculative_tokens: 4\n"
    )
    job, _ = made(tmp_path, "vllm serve --config c.yaml --max-num-seqs 64")
    assert job["launch"]["current"] == (
        "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --served-model-name a b --no-enable-prefix-caching "
        '--trust-remote-code --speculative-config \'{"method": "ngram", "num_speculative_tokens": 4}\' '
        "--max-num-seqs 64"
    )
    _, notes = made(tmp_path, "vllm serve Qwen/Qwen3-32B --config missing.yaml")
    assert any(note.startswith("launch.current: write the settings of missing.yaml as flags") for note in notes)


def test_graphs_of_the_line_that_ask_for_permission_have_it(tmp_path):
    job, _ = made(tmp_path, "vllm serve Qwen/Qwen3-32B -cc.cudagraph_mode=FULL_DECODE_ONLY")
    assert job["space"] == {"fix": {"cudagraph_mode": "FULL_DECODE_ONLY"}}


@pytest.mark.parametrize(
    ("line", "told", "prefix"),
    [
        (
            "docker run --gpus all vllm/vllm-openai:v0.11.0 --model M",
            True,
            ["docker", "run", "--rm", "--network", "host"],
        ),
        ("docker run --net=host vllm/vllm-openai --model M", True, ["docker", "run", "--rm", "--net=host"]),
        ("numactl --cpunodebind=0 vllm serve M", False, ["numactl", "--cpunodebind=0"]),
        ("docker run -it --network=host rocm/vllm vllm serve M", True, ["docker", "run", "--rm", "--network=host"]),
        ("podman run --name v my/vllm vllm serve M", True, ["podman", "run", "--rm", "--network", "host", "my/vllm"]),
    ],
)
def test_only_what_is_in_a_container_is_to_be_mounted(tmp_path, line, told, prefix):
    """The load over HTTP did not reach a container of its own network."""
    job, notes = made(tmp_path, line)
    assert any("autoscout's package in the container" in note for note in notes) == told
    assert job["launch"]["command_prefix"][: len(prefix)] == prefix


@pytest.mark.parametrize(("tag", "told"), [("v0.11.0", True), ("latest", False), ("v0.32.0", False)])
def test_the_release_of_an_image_that_cannot_be_asked_is_said(tmp_path, tag, told):
    """A line of 0.11 was exported with flags and defaults of 0.32 without a word."""
    line = f"docker run --gpus all vllm/vllm-openai:{tag} --model x/Llama-3.1-8B -tp 1"
    text, _ = job_file(shlex.split(line), tmp_path)
    (tmp_path / "job.toml").write_text(text.replace('"GPU"', '"h100"'))
    job = load_job(tmp_path / "job.toml")
    said = (
        "names and defaults of flags are those of vLLM 0.32.0, not of vLLM 0.11.0, because the image of "
        "launch.command_prefix cannot run here"
    )
    assert (said in target_of(job).notes_on_job(job)) == told
    missing = target_of(job).launch(job, JobSpace.of_job(job).reference).missing
    assert (said in missing) == told
    # the container was left out without a word
    assert [each for each in missing if "--gpus all --entrypoint '' vllm/vllm-openai:" in each]


def test_the_line_of_another_node_is_told(tmp_path):
    _, notes = made(tmp_path, "vllm serve Qwen/Qwen3-32B --headless -dp 2 -dpr 1 -dpa 10.0.0.1")
    assert any("--headless is for nodes other than the first" in note for note in notes)


@pytest.mark.parametrize(
    ("device", "cache", "valid"),
    [
        ("h100", "fp8", True),
        ("b200", "fp8", True),
        ("a100", "fp8", False),
        ("rtx5090", "fp8", False),
        ("a100", "auto", True),
    ],
)
def test_flash_attention_keeps_a_cache_in_8_bits_on_some_devices_only(engine, device, cache, valid):
    """vLLM refuses --attention-backend FLASH_ATTN with --kv-cache-dtype fp8 on an A100 when the model is built."""
    cluster = Cluster(nodes=[Node(device=device, count=8)])
    limits = SpaceLimits(allow=["attention", "kv_cache_dtype"])
    space = JobSpace.of_job(msgspec.structs.replace(engine, cluster=cluster, space=limits))
    knobs = {**space.reference.knobs, "attention": "FLASH_ATTN", "kv_cache_dtype": cache}
    assert space.is_valid(Configuration(knobs)) == valid


def test_deepep_for_throughput_records_no_graphs(engine):
    """vLLM turns them off with it, so that each mode and size was the same run."""
    limits = SpaceLimits(allow=["all2all"])
    model = msgspec.convert(models()["qwen3-30b-a3b"], Model)
    space = JobSpace.of_job(msgspec.structs.replace(engine, model=model, space=limits))
    found = explain(space, parse(space, ["tp=1", "dp=8", "ep=true", "all2all=deepep_high_throughput"]), space.reference)
    assert found.configuration is not None
    assert not {"cudagraph_mode", "graph_size"} & found.configuration.knobs.keys()
    assert found.configuration.knobs["eager"] is False


def test_a_device_of_unknown_capability_may_serve_in_8_bits(engine):
    job = msgspec.structs.replace(
        engine, cluster=Cluster(nodes=[Node(device="mi300x", count=8)]), space=SpaceLimits(allow=["quantization"])
    )
    space = JobSpace.of_job(job)
    assert space.is_valid(Configuration({**space.reference.knobs, "quantization": "fp8"}))


def test_what_does_not_fit_is_said_of_devices_that_there_are(engine):
    """405B on eight H100 "11.8 GiB of weights exceed 0.95 of 80 GiB, with tp=8 pp=8 dp=8": not more than they have, and
    512 devices."""
    model = msgspec.convert(models()["llama-3.1-405b"], Model)
    with pytest.raises(AutoscoutError, match=r"\(94\.5 GiB of weights and one request .* with tp=8 pp=1 dp=1 "):
        JobSpace.of_job(msgspec.structs.replace(engine, model=model))


def test_numbers_of_the_line_are_among_the_values(engine):
    """0.93 became 0.92 and 3000 tokens 4096: what was held against was not the present launch."""
    line = "-tp 2 --max-num-seqs 48 --max-num-batched-tokens 3000 --gpu-memory-utilization .93 --block-size 64 "
    job = says(engine, line + "--max-cudagraph-capture-size 96 -sc.method ngram -sc.num_speculative_tokens 5")
    found = exported(job)
    assert (found["--max-num-seqs"], found["--max-num-batched-tokens"]) == (48, 3000)
    assert (found["--gpu-memory-utilization"], found["--block-size"]) == (0.93, 64)
    assert (
        found["--max-cudagraph-capture-size"],
        json.loads(found["--speculative-config"])["num_speculative_tokens"],
    ) == (
        96,
        5,
    )
    assert not [note for note in target_of(job).notes_on_job(job) if "not valid" in note]
    space = JobSpace.of_job(job)
    assert space.knob["max_num_batched_tokens"].values == (512, 1024, 2048, 3000, 4096, 8192, 16384, 32768)
    assert 3 not in JobSpace.of_job(says(engine, "-tp 3 --gpu-memory-utilization 0.9")).knob["tp"].values


def test_settings_beside_knobs_that_go_with_some_values_only(engine):
    """With 8 key/value heads tp 8 holds none twice: vLLM refuses to share them (0.32, config/model.py:1566)."""
    with pytest.raises(AutoscoutError, match=r"decode context parallel needs a tp 8 that holds"):
        JobSpace.of_job(says(engine, "-tp 8 -dcp 2"))
    assert JobSpace.of_job(says(engine, "-tp 8 -dcp 1")).reference.knobs["tp"] == 8
    few = msgspec.structs.replace(engine.model, kv_heads=2)
    space = JobSpace.of_job(says(msgspec.structs.replace(engine, model=few), "-tp 8 -dcp 2"))
    assert space.reference.knobs["tp"] == 8
    assert not explain(space, {"tp": 2}, space.reference).configuration


def test_balanced_experts_need_whole_ones(engine):
    model = msgspec.convert(models()["qwen3-30b-a3b"], Model)
    space = JobSpace.of_job(says(msgspec.structs.replace(engine, model=model), "-tp 8 -ep --enable-eplb"))
    assert not space.is_valid(Configuration({**space.reference.knobs, "ep": False}))
    assert "--enable-eplb" in exported(says(msgspec.structs.replace(engine, model=model), "-tp 8 -ep --enable-eplb"))


def test_a_switch_that_asks_for_permission_has_it(tmp_path):
    job, _ = made(tmp_path, "vllm serve Qwen/Qwen3-30B-A3B -dp 8 -ep --enable-dbo --all2all-backend deepep_low_latency")
    assert job["space"] == {"fix": {"all2all": "deepep_low_latency", "dual_batch": True}}


def test_a_line_in_one_word_is_read_as_a_shell_reads_it(tmp_path):
    """Before it stood a variable and nohup, which no script begins with: where its output went became flags."""
    job, _ = made(tmp_path, "HF_HUB_OFFLINE=1 nohup vllm serve Qwen/Qwen3-32B -tp 4 > log.txt 2>&1 &")
    assert job["launch"]["current"] == "vllm serve Qwen/Qwen3-32B -tp 4"
    assert job["launch"]["environment"] == {"HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize(
    ("line", "current"),
    [
        ("--enforce-eager --port 8000 Qwen/Qwen3-32B", "Qwen/Qwen3-32B --enforce-eager --port 8000"),
        ("--port 8000 --enforce-eager Qwen/Qwen3-32B", "Qwen/Qwen3-32B --port 8000 --enforce-eager"),
        ("--model Qwen/Qwen3-32B --lora-modules a=/a b=/b", "--model Qwen/Qwen3-32B --lora-modules a=/a b=/b"),
    ],
)
def test_a_model_behind_the_flags_is_the_model(tmp_path, line, current):
    """It was taken for a second port, with which the export did not start."""
    job, _ = made(tmp_path, f"vllm serve {line}")
    assert job["launch"]["current"] == f"vllm serve {current}"
    assert job["model"] == {"preset": "qwen3-32b"}


def test_guessed_requests_are_no_longer_than_the_server_takes(tmp_path):
    """The baseline had --max-model-len 1280 where the line has 512."""
    job, _ = made(tmp_path, "vllm serve Qwen/Qwen3-32B --max-model-len 512")
    assert (job["traffic"]["input_len"], job["traffic"]["output_len"]) == (409, 103)


@pytest.mark.parametrize(("devices", "refused"), [("", True), ("-tp 8", False)])
def test_what_no_configuration_may_have_is_said_at_once(tmp_path, devices, refused):
    """The job was written without a word, and every verb refused it."""
    _, notes = made(tmp_path, f"vllm serve Qwen/Qwen3-30B-A3B {devices} --enable-expert-parallel --enable-eplb")
    said = [note for note in notes if note.startswith("AutoScout cannot read this job until you fix the following")]
    assert bool(said) == refused
    assert all("--enable-eplb balances whole experts over devices" in note for note in said)
