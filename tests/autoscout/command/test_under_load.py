"""A line that starts a server of another engine: the job that `init` makes of it, its experiments and its export."""

import json
import sys
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from autoscout.machine.starting import job_file
from autoscout.simulate.encode import of_configurations, of_job
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.weight_formats import WEIGHT_BYTES
from autoscout.targets.command.arguments import Place, started
from autoscout.targets.command.exported import exported, tried
from autoscout.targets.command.profiler import CommandProfiler
from autoscout.targets.jobs import JobSpace, load_job, simulators_of
from autoscout.targets.target import target_of
from autoscout.tuning.predict import unpriced
from kb.records import AutoscoutError, Cluster, Configuration, Node

ENGINES = Path(__file__).parent / "engines"
LINE = [sys.executable, "-m", "sglang.launch_server", "--model", "meta/Llama-8B", "--tp", "2", "--port", "30000"]

MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "vocab_size": 151936,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "torch_dtype": "bfloat16",
    "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip


def on_gpus(job, kind, count):
    return JobSpace.of_job(msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device=kind, count=count)])))


def made(tmp_path, words, **environment):
    path = tmp_path / "job.toml"
    path.write_text(job_file(words, tmp_path)[0].replace('"GPU"', '"h100"'))  # trtllm-serve runs on nothing else
    job = load_job(path)
    variables = {"PYTHONPATH": str(ENGINES), **environment}
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, environment=variables))


def run(job, tmp_path, **changed):
    reference = JobSpace.of_job(job).reference
    configuration = Configuration({**reference.knobs, **changed})
    return CommandProfiler(job).run(configuration, "c", tmp_path / "experiment")


def test_a_server_is_a_job_that_serves_on_its_devices(tmp_path):
    job = made(tmp_path, LINE)
    assert (job.task, job.launch.script, job.name, job.devices) == ("serve", "sglang", "Llama-8B", 2)
    assert job.objective.metric == "output_tokens_per_s"
    assert JobSpace.of_job(job).reference.knobs["tp"] == 2


def test_an_experiment_starts_the_server_loads_it_and_ends_it(tmp_path):
    job = made(tmp_path, LINE)
    fast, slow = run(job, tmp_path, seqs=64), run(job, tmp_path, seqs=16)
    assert (fast.status, slow.status) == ("ok", "ok"), (fast.evidence, slow.evidence)
    assert fast.metrics["output_tokens_per_s"] == 32 / 4 * 256  # of the 32 users that the job has
    assert slow.metrics["output_tokens_per_s"] == 16 / 4 * 256
    assert fast.metrics["ttft_mean_ms"] == 102.4
    mine = f"PYTHONPATH={ENGINES}".encode()
    assert not [p for p in Path("/proc").iterdir() if p.name.isdigit() and mine in _environment(p)]


def test_a_server_that_does_not_start_is_a_failure_by_its_own_words(tmp_path):
    found = run(made(tmp_path, LINE, END="crash"), tmp_path)
    assert (found.status, "CUDA out of memory" in found.evidence) == ("oom", True), found.evidence


def test_the_export_is_the_servers_line_alone_and_its_check_loads_it(tmp_path):
    job = made(tmp_path, LINE)
    configuration = Configuration({**JobSpace.of_job(job).reference.knobs, "seqs": 64})
    launch = msgspec.structs.replace(exported(job, configuration), configuration=configuration.knobs)
    assert launch.program[:7] == [*LINE[:3], "--model-path", "meta/Llama-8B", "--tp-size", "2"]
    assert launch.program[launch.program.index("--max-running-requests") + 1] == "64"
    assert launch.program[launch.program.index("--port") + 1] == "30000"
    assert tried(job, launch, "command", 2) > 0


def test_copies_share_devices_only_where_the_line_has_it(tmp_path):
    whole = made(tmp_path, [*LINE[:4], "DeepSeek-V3", "--tp", "8", "--dp", "8", "--enable-dp-attention"])
    assert whole.devices == 8
    assert JobSpace.of_job(whole).reference.knobs["dp_attention"] is True
    apart = made(tmp_path, [*LINE[:4], "Llama-8B", "--tp", "2", "--dp", "4"])
    assert apart.devices == 8
    assert {(k["tp"], k["dp"]) for k in _all(apart)} == {(8, 1), (4, 2), (2, 4), (1, 8)}


def test_tensorrt_llms_server_is_known(tmp_path):
    job = made(tmp_path, ["trtllm-serve", "serve", "Qwen/Qwen3-8B", "--tensor_parallel_size", "4"])
    assert (job.launch.script, job.name, job.devices) == ("tensorrt-llm", "Qwen3-8B", 4)
    assert {(k["tp"], k["pp"]) for k in _all(job)} == {(4, 1), (2, 2), (1, 4)}
    (tmp_path / "job.toml").write_text((tmp_path / "job.toml").read_text().replace('"h100"', '"mi300x"'))
    with pytest.raises(AutoscoutError, match="'tensorrt-llm' runs only on NVIDIA's GPUs, not on mi300x"):
        load_job(tmp_path / "job.toml")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ([*LINE, "--nnodes", "2"], "spans 2 nodes"),
        ([*LINE[:3], "--tp", "2"], "names no model"),
        (["text-generation-launcher", "--model-id", "Qwen/Qwen3-8B"], "starts a server, which does not end"),
        (["lmdeploy", "serve", "api_server", "Qwen/Qwen3-8B"], "'serve' starts a server"),
        (
            ["docker", "run", "--gpus", "all", "ghcr.io/huggingface/text-generation-inference:3.3", "--model-id", "m"],
            "text-generation-inference:3.3' starts a server",
        ),
        (["trtllm-serve", "disaggregated", "-c", "x.yaml"], "'disaggregated' does not start a server of one model"),
    ],
)
def test_what_cannot_be_started_as_it_stands_is_said(tmp_path, line, says):
    with pytest.raises(AutoscoutError, match=says) as error:
        job_file(line, tmp_path)
    assert error.value.exit_code == 2


def _all(job):
    columns = JobSpace.of_job(job).feasible.columns()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _environment(process):
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_a_servers_line_is_predicted_by_its_own_engine(tmp_path):
    """Its model is read from the folder; its knobs and flags mean what the serving simulator knows of the engine."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(MIXTURE))
    for words, engine in (
        ([*LINE[:4], f"{tmp_path}/model", "--tp", "2", "--mem-fraction-static", "0.8"], "SGLang"),
        (["trtllm-serve", f"{tmp_path}/model", "--tp_size", "2", "--kv_cache_dtype", "fp8"], "TensorRT-LLM"),
    ):
        space = on_gpus(made(tmp_path, words), "h100", 2)
        columns = space.columns(space.feasible.codes)
        assert set(columns["framework"]) == {engine}
        (member,) = simulators_of(space.job)
        found = member.predict({**of_job(space.job), **columns}).value
        assert np.isfinite(found).all()
        assert 300 < np.min(found) < np.max(found) < 20000
    assert set(columns["kv_cache_dtype"]) == {"fp8"}
    assert "gpu_memory_utilization" in columns


LATENT = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "tie_word_embeddings": False, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip


@pytest.mark.parametrize("words", [[*LINE[:4], "M", "--tp", "8"], ["trtllm-serve", "M", "--tp_size", "8"]])
def test_a_server_of_a_model_with_latent_attention_is_predicted(tmp_path, words):
    """`init` wrote a job that every verb refused: the model was known of vLLM alone."""
    (tmp_path / "M").mkdir()
    (tmp_path / "M/config.json").write_text(json.dumps(LATENT))
    job = on_gpus(made(tmp_path, [f"{tmp_path}/M" if word == "M" else word for word in words]), "h200", 8).job
    (member,) = simulators_of(job)
    space = JobSpace.of_job(job)
    found = member.predict({**of_job(job), **of_configurations(space, [space.reference])})
    assert 300 < found.value[0] < 5000


def test_copies_of_sglang_share_experts_only_with_attention_of_their_own(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(MIXTURE))
    line = [*LINE[:4], f"{tmp_path}/model", "--tp", "4", "--dp", "4", "--enable-dp-attention"]
    space = on_gpus(made(tmp_path, line), "h100", 4)
    rows = [Configuration({**space.reference.knobs, **k}) for k in ({}, {"tp": 1, "dp": 4, "dp_attention": False})]
    columns = {**of_job(space.job), **of_configurations(space, rows)}
    e = setup(columns, device("h100"), 2).engine
    assert (e.tp.tolist(), e.meeting.tolist(), e.spread.tolist()) == ([1, 1], [4, 1], [4, 1])


def test_what_nothing_models_of_a_servers_line_is_said(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(MIXTURE))
    guessing = made(tmp_path, [*LINE[:4], f"{tmp_path}/model", "--speculative-algorithm", "EAGLE"])
    assert (simulators_of(guessing), target_of(guessing).untold(guessing)) == (
        [],
        "no simulator models --speculative-algorithm",
    )
    unknown = made(tmp_path, [*LINE[:4], "somebody/secret", "--tp", "2"])
    assert simulators_of(unknown) == []
    assert target_of(unknown).untold(unknown).startswith("the job has no [model] (from = its config.json")
    file = made(tmp_path, ["trtllm-serve", f"{tmp_path}/model", "--extra_llm_api_options", "more.yaml"])
    assert "predictions leave out what --extra_llm_api_options names" in target_of(file).notes_on_job(file)


def test_todays_values_are_among_those_that_are_tried_and_predicted(tmp_path):
    """The line was refused: 100 is no value of the knob; and -1, whole prompts, ended a prediction."""
    words = [*LINE[:4], "Qwen/Qwen3-30B-A3B", "--tp", "2", "--max-running-requests", "100"]
    space = on_gpus(made(tmp_path, [*words, "--chunked-prefill-size", "-1"]), "h100", 2)
    reference = space.reference
    assert (reference.knobs["seqs"], reference.knobs["chunk"]) == (100, -1)
    assert [knob.name for knob in space.knobs if not knob.priced] == ["mixed", "caution"]
    (member,) = simulators_of(space.job)
    columns = {**of_job(space.job), **of_configurations(space, [reference])}
    assert (columns["chunked_prefill"][0], columns["max_num_batched_tokens"][0]) == (0, 16384)
    assert 300 < member.predict(columns).value[0] < 20000


def of_line(tmp_path, kind, count, *flags, config=MIXTURE, words=(*LINE[:4],)):
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    return on_gpus(made(tmp_path, [*words, f"{tmp_path}/model", *flags]), kind, count)


def predicted(space, **knobs):
    (member,) = simulators_of(space.job)
    rows = [Configuration({**space.reference.knobs, **knobs})]
    return member.predict({**of_job(space.job), **of_configurations(space, rows)}).value[0]


def test_what_the_line_leaves_to_the_server_is_left_to_it(tmp_path):
    """The present launch was measured with 2,048 requests and chunks of 8,192 tokens, whatever the server would take:
    48 requests beside a draft, chunks by the memory of its device."""
    flags = ["--tp-size", "2", "--speculative-algorithm", "EAGLE"]
    space = of_line(tmp_path, "h100", 2, *flags)
    today = exported(space.job, space.reference).program
    assert today == [*LINE[:3], "--model-path", f"{tmp_path}/model", *flags]
    fewer = exported(space.job, Configuration({**space.reference.knobs, "seqs": 64})).program
    assert fewer == [*today, "--max-running-requests", "64"]
    said = of_line(tmp_path, "h100", 2, "--tp", "2", "--chunked-prefill-size", "4096")
    back = exported(said.job, Configuration({**said.reference.knobs, "chunk": 8192})).program
    assert back[-2:] == ["--chunked-prefill-size", "8192"]


@pytest.mark.parametrize(("kind", "chunk"), [("l4", 2048), ("l40s", 4096), ("h100", 8192), ("b200", 16384)])
def test_a_servers_default_that_follows_from_the_device_is_that_of_the_jobs_device(tmp_path, kind, chunk):
    assert of_line(tmp_path, kind, 1).reference.knobs["chunk"] == chunk


@pytest.mark.parametrize(
    ("flags", "config", "count", "valid"),
    [
        (["--tp", "4"], {"num_attention_heads": 28}, 4, {4, 2, 1}),
        (["--tp", "8"], {"num_attention_heads": 28}, 8, {4, 2, 1}),
        (["--tp", "3"], {}, 3, {1}),
        (["--tp", "4", "--ep-size", "4"], {}, 4, {4}),
        (["--tp", "8", "--expert-parallel-size", "2"], {}, 8, {8, 4, 2}),
        (["--tp", "8"], {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, 8, {2, 1}),
    ],
)
def test_no_server_is_recommended_that_does_not_start(tmp_path, flags, config, count, valid):
    """tp that does not divide heads, the line's groups of experts or the blocks of their stored weights was predicted
    and recommended."""
    space = of_line(tmp_path, "h100", count, *flags, config={**MIXTURE, **config})
    assert {k["tp"] for k in _all(space.job)} == valid


@pytest.mark.parametrize(("groups", "valid"), [([], {8, 4, 2, 1}), (["--ep_size", "4"], {8, 4})])
def test_tensorrt_llms_groups_of_experts_divide_its_devices(tmp_path, groups, valid):
    words = ["trtllm-serve", "serve"]
    space = of_line(tmp_path, "h100", 8, "--tp_size", "8", *groups, config={**MIXTURE, "num_key_value_heads": 8},
                    words=words)  # fmt: skip
    assert {k["tp"] for k in _all(space.job)} == valid


def test_one_copy_has_no_attention_of_its_own(tmp_path):
    """SGLang turns --enable-dp-attention off with one copy; the line that runs today was refused."""
    space = of_line(tmp_path, "h100", 1, "--tp", "1", "--dp", "1", "--enable-dp-attention")
    assert "dp_attention" not in space.reference.knobs
    whole = of_line(tmp_path, "h100", 4, "--tp", "4", "--enable-dp-attention")
    assert (whole.reference.knobs["tp"], whole.reference.knobs["dp"]) == (4, 1)
    assert not [note for note in target_of(whole.job).notes_on_job(whole.job) if "not valid" in note]


def test_copies_that_share_devices_divide_requests_and_chunks(tmp_path):
    """SGLang divides both flags by --dp-size there; each copy was predicted with all."""
    space = of_line(tmp_path, "h100", 4, "--tp", "4", "--dp", "4", "--enable-dp-attention")
    columns = of_configurations(space, [space.reference])
    assert (columns["max_num_seqs"][0], columns["max_num_batched_tokens"][0]) == (512, 2048)


def test_what_a_line_turns_off_is_slower_and_what_it_says_beside_is_named(tmp_path):
    """Without graphs a server was predicted as fast as with them, and no other flag was named."""
    plain, eager = (of_line(tmp_path, "h100", 2, "--tp", "2", *more) for more in ([], ["--disable-cuda-graph"]))
    assert predicted(eager) < 0.95 * predicted(plain)
    beyond = of_line(tmp_path, "h100", 2, "--tp", "2", "--cuda-graph-max-bs", "8")  # of 32 users
    assert predicted(beyond) == predicted(eager)
    alone = of_line(tmp_path, "h100", 2, "--tp", "2", "--disable-overlap-schedule")
    assert predicted(alone) < predicted(plain)
    other = of_line(tmp_path, "h100", 2, "--tp", "2", "--attention-backend", "fa3", "--max-total-tokens", "9000")
    assert unpriced(other, [other.reference]) == ["--attention-backend", "--max-total-tokens"]
    notes = target_of(other.job).notes_on_job(other.job)
    assert "predictions leave out --attention-backend, --max-total-tokens" in notes


@pytest.mark.parametrize(
    ("name", "said", "as_stored"),
    [("x/Llama-3.1-70B-AWQ", "awq_marlin", "int4"), ("meta/Llama-3.1-70B", "w8a8_fp8", "fp8")],
)
def test_names_of_kernels_are_formats_of_weights(tmp_path, name, said, as_stored):
    """awq_marlin counted as 16 bits, so that nothing fit."""
    job = on_gpus(made(tmp_path, [*LINE[:4], name, "--tp", "2", "--quantization", said]), "h100", 2).job
    space = JobSpace.of_job(job)
    columns = {**of_job(job), **of_configurations(space, [space.reference])}
    engine = setup(columns, device("h100"), 1).engine
    assert engine.weight_bytes[0] == WEIGHT_BYTES[as_stored]
    other = made(tmp_path, [*LINE[:4], "meta/Llama-3.1-70B", "--quantization", "bitsandbytes"])
    assert target_of(other).untold(other) == "no simulator models --quantization bitsandbytes"


def test_a_load_that_the_engines_tool_does_not_send_is_refused(tmp_path):
    """A trace became requests that were all as long as its longest, at a rate of 0."""
    (tmp_path / "chat.csv").write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n1,200,30\n4,6000,20\n")
    text, path = job_file(LINE, tmp_path)[0].replace('"GPU"', '"h100"'), tmp_path / "job.toml"
    usual = "concurrency = 32\ninput_len = 1024\noutput_len = 256"
    assert usual in text
    path.write_text(text.replace(usual, 'trace = "chat.csv"'))
    with pytest.raises(AutoscoutError, match=r"write rate = 0.5, input_len = 2100 and output_len = 20, which are the"):
        load_job(path)
    path.write_text(text.replace("input_len = 1024", "input_len = [100, 200, 6000]"))
    with pytest.raises(AutoscoutError, match=r"write concurrency = 32, input_len = 2100 .* instead of quantiles"):
        load_job(path)
    path.write_text(text.replace(usual, f"{usual}\nshared_prefix = 100"))
    with pytest.raises(AutoscoutError, match="supports neither sessions nor shared_prefix"):
        load_job(path)


def test_a_metric_that_the_engines_tool_does_not_say_is_answered_with_those_that_it_does(tmp_path):
    """It named each latency in five units, and highest rates as unknown."""
    text, path = job_file(LINE, tmp_path)[0].replace('"GPU"', '"h100"'), tmp_path / "job.toml"
    asked = 'maximize = "output_tokens_per_s"'
    limited = 'constraints = ["ttft_p99_ms <= 1500", "tpot_p99_ms <= 50", "itl_p99_s <= 1"]'
    path.write_text(text.replace(asked, f"{asked}\n{limited}"))
    assert load_job(path).objective.constraints[1] == "tpot_p99_ms <= 50"
    path.write_text(text.replace(asked, f'{asked}\nconstraints = ["zzz <= 1"]'))
    with pytest.raises(AutoscoutError) as told:
        load_job(path)
    assert "ttft_p99_ms" in str(told.value)
    assert "ttft_p99_us" not in str(told.value)
    path.write_text(text.replace(asked, 'maximize = "max_rate_rps"\nconstraints = ["ttft_p99_ms <= 1500"]'))
    with pytest.raises(AutoscoutError, match=r"only target = 'vllm' searches for; set traffic\.rate"):
        load_job(path)


def test_what_a_file_of_settings_says_is_not_tried_by_flags(tmp_path):
    """TensorRT-LLM takes it before the line's flags: configurations that differed in such a flag were the same run."""
    (tmp_path / "more.yaml").write_text("cuda_graph_config:\n  max_batch_size: 64\nkv_cache_config:\n  dtype: fp8\n")
    line = ["trtllm-serve", "Qwen/Qwen3-32B", "--tp_size", "2", "--max_batch_size", "64", "--config"]
    text, notes = job_file([*line, str(tmp_path / "more.yaml")], tmp_path)
    assert tomllib.loads(text)["space"]["fix"] == {"cache": 0.9}
    assert any(note.endswith("sets kv_cache_config itself, which overrides the line's flags") for note in notes)
    _, notes = job_file([*line, "nowhere.yaml"], tmp_path)
    assert any(
        note.startswith("space.fix: nowhere.yaml, which overrides the flags, cannot be read here") for note in notes
    )


def test_what_a_file_of_settings_says_is_what_runs(tmp_path):
    """The knobs were fixed at the values of the flags, which the file replaces, and predicted with them."""
    (tmp_path / "more.yaml").write_text("max_batch_size: 48\nkv_cache_config:\n  free_gpu_memory_fraction: 0.8\n")
    line = ["trtllm-serve", "Qwen/Qwen3-32B", "--tp_size", "2", "--max_batch_size", "256", "--config"]
    job = made(tmp_path, [*line, str(tmp_path / "more.yaml")])
    reference = JobSpace.of_job(job).reference
    assert (reference.knobs["seqs"], reference.knobs["cache"]) == (48, 0.8)


def test_an_abbreviated_flag_is_the_flag(tmp_path):
    """Knobs had their defaults, and an experiment's flag stood beside the line's: the last one counts."""
    words = [*LINE[:4], "Qwen/Qwen3-8B", "--tensor-par", "2", "--max-running-req=64", "--speculative-algo", "EAGLE"]
    job = made(tmp_path, ["docker", "run", "--mem", "8g", "lmsysorg/sglang", *words])
    assert (job.devices, JobSpace.of_job(job).reference.knobs["seqs"]) == (2, 64)
    assert target_of(job).untold(job) == "no simulator models --speculative-algorithm"
    assert " --mem 8g " in job.launch.current


@pytest.mark.parametrize("text", ['{"kv_cache_config": {"dtype": "fp8"}}', "'kv_cache_config':\n  dtype: fp8\n"])
def test_a_file_of_settings_is_read_as_the_server_reads_it(tmp_path, text):
    """A quoted key, and all of JSON, were passed over."""
    (tmp_path / "more.yaml").write_text(text)
    line = ["trtllm-serve", "Qwen/Qwen3-32B", "--tp_size", "2", "--config", str(tmp_path / "more.yaml")]
    made, _ = job_file(line, tmp_path)
    assert tomllib.loads(made)["space"]["fix"] == {"cache": 0.9}


@pytest.mark.parametrize(
    ("before", "kept", "load"),
    [
        (
            "docker run -d --name a --restart always --gpus all -p 30000:30000 x/sglang",
            "docker run --network host --rm --gpus all -p 30000:30000 x/sglang",
            "docker run --network host --rm --gpus all -p 30000:30000 x/sglang python3",
        ),
        ("docker run -it --rm --net host x/sglang", "docker run --rm --net host x/sglang", None),
        ("apptainer exec --nv s.sif", "apptainer exec --nv s.sif", "apptainer exec --nv s.sif python3"),
        ("numactl -N 0", "numactl -N 0", "python3"),
    ],
)
def test_a_server_in_a_container_is_loaded_from_inside_of_one(tmp_path, before, kept, load):
    """docker left the server behind (-d) or asked for a terminal (-it), its port was not ours, and the engine's load
    tool was looked for outside."""
    words = [*before.split(), "python3", *LINE[1:4], "meta/Llama-8B"]
    job = made(tmp_path, words)
    reference = JobSpace.of_job(job).reference
    assert exported(job, reference).program == [*kept.split(), "python3", *LINE[1:3], "--model-path", "meta/Llama-8B"]
    _, _, script = started(job, reference, Place(folder="/run", port="2345", iterations="6")).words
    assert script.startswith(f"{kept} python3 -m sglang.launch_server")
    assert f"\n{load or f'{kept} python3'} -m sglang.bench_serving " in script
    said = (tmp_path / "job.toml").read_text()
    assert ("starts a container anew" in said) == (before != kept)
