"""The reader of MLPerf Inference's submissions (tests/tools/mlperf_inference.py), on made-up ones."""

import json
from pathlib import Path

import pytest

from tests.tools.mlperf_configs import told
from tests.tools.mlperf_inference import DATA_SETS, answers, prompts, rows_of
from tests.tools.published_serving_mlperf import degrees, ordered

DICTIONARIES = """
import code.llmlib.fields as llm_fields
base = {
    llm_fields.tensor_parallelism: 2,
    llm_fields.trtllm_runtime_flags: {'max_num_tokens': 1024 + 512, 'enable_chunked_context': True},
    model_fields.gpu_batch_size: {'llama2-70b': 640},
    model_fields.precision: 'fp4',
}
more = {**base, model_fields.precision: 'fp8'}
EXPORTS = {
    C.WorkloadSetting(C.HarnessType.Custom, C.AccuracyTarget(0.999), C.PowerSetting.MaxP): more,
    C.WorkloadSetting(C.HarnessType.Custom, C.AccuracyTarget(0.99), C.PowerSetting.MaxP): base,
}
"""
CLASSES = """
class Base(GPUBaseConfig):
    tensor_parallelism = 2
    use_fp8 = True

class One(Base):
    system = KnownSystem.H200_SXM_141GBx1
    gpu_batch_size = {'llama2-70b': 806}
    tensor_parallelism = 1

class Eight_MaxQ(One):
    system = KnownSystem.H200_SXM_141GBx8
    power_limit = 350

class Eight(One):
    system = KnownSystem.H200_SXM_141GBx8
    offline_expected_qps = One.tensor_parallelism * 8
"""
YAML = """
vllm_engine_config: {tensor_parallel_size: 1, num_scheduler_steps: 11, quantization: fp8, max_num_seqs: 1792}
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_lengths(folder: Path, tokens: tuple[int, ...] = (50, 100, 150, 700)) -> Path:
    rows = "\n".join(f"{n},7" for n in tokens)
    return write(folder / "lengths" / DATA_SETS["llama2-70b"][0], f"input_length,output_length\n{rows}\n")


def test_configurations_are_read_without_running_them(tmp_path: Path) -> None:
    write(tmp_path / "configs/B200x8/Offline/llama2-70b.py", DICTIONARIES)
    said = told(tmp_path, "B200x8_TRT", "llama2-70b", "Offline")
    assert isinstance(said, dict)
    assert (said["tp"], said["max_num_seqs"], said["max_num_batched_tokens"]) == (2, 640, 1536)
    assert (said["quantization"], said["kv_dtype"], said["chunked_prefill"], said["evicts"]) == ("nvfp4", "fp8", 1, 1)
    assert told(tmp_path, "B200x8_TRT", "llama3.1-8b", "Offline") == "no configuration of that system"


def test_a_class_has_what_it_inherits(tmp_path: Path) -> None:
    write(tmp_path / "configs/llama2-70b/__init__.py", "class GPUBaseConfig(Any):\n    max_num_tokens = 4096\n")
    write(tmp_path / "configs/llama2-70b/Offline/__init__.py", CLASSES.replace("GPUBaseConfig", "GPUBaseConfig", 1))
    fast, slow = (told(tmp_path, f"H200-SXM-141GBx8_TRT{end}", "llama2-70b", "Offline") for end in ("", "_MaxQ"))
    assert isinstance(fast, dict)
    assert isinstance(slow, dict)
    assert (fast["tp"], fast["max_num_seqs"], fast["max_num_batched_tokens"]) == (1, 806, 4096)
    assert (fast["power_watts"], slow["power_watts"]) == (None, 350)


def test_amd_s_fork_and_engines_that_balance_prompts_hold_them_back(tmp_path: Path) -> None:
    env = "vllm_env_config: {VLLM_LLAMA2_MLPERF_SCHED: 1, VLLM_LLAMA2_MLPERF_MIN_REQUIRE_PREFILL_QUERY: 8}"
    write(tmp_path / "code/llama2-70b-99/harness_llm/models/llama2-70b/server_mi300x.yaml", YAML + env)
    said = told(tmp_path, "8xMI300X_2xEPYC", "llama2-70b", "Server")
    assert isinstance(said, dict)
    assert (said["scheduler_steps"], said["prompts_apart"]) == (11, 8)
    together = "llm_fields.trtllm_build_flags: {'enable_attention_dp': True},"
    iters = "'adp_balancing_timeout_iters': 9, 'adp_balancing_batching_wait_iters': 3, 'max_num_tokens'"
    for more, wanted in (("'max_num_tokens'", (500, 10)), (iters, (9, 3)), ("'adp_balancing_enable': False", (0, 0))):
        text = DICTIONARIES.replace("'max_num_tokens'", more if "max_num" in more else more + ", 'max_num_tokens'")
        write(
            tmp_path / "configs/B200x8/Server/deepseek-r1.py", text.replace("base = {", "base = {\n    " + together, 1)
        )
        said = told(tmp_path, "B200x8_TRT", "deepseek-r1", "Server")
        assert isinstance(said, dict)
        assert (said["adp_timeout_iters"], said["adp_wait_iters"]) == wanted
        assert (said["attention_dp"], said["served"]) == (1, 1)


def test_amd_s_fork_of_version_1_says_how_many_steps_have_no_prompts(tmp_path: Path) -> None:
    env = "vllm_env_config: {VLLM_SUBSEQUENT_DECODE_STEPS: 6, VLLM_MIN_REQUEST_DECODE_STEP: 256}"
    graphs = "compilation_config: {cudagraph_capture_range: [[4096, 0, -8], 4, 2, 1]}, "
    file = tmp_path / "src/llama2-70b-99/server_mi355x.yaml"
    write(file, YAML.replace("engine_config: {", "engine_config: {" + graphs) + env)
    said = told(tmp_path, "8xMI355X_2xEPYC", "llama2-70b", "Server")
    assert isinstance(said, dict)
    assert (said["decodes_between"], said["decodes_between_from"]) == (6, 256)
    assert said["max_cudagraph_capture_size"] == 4096


def test_amd_s_harness_has_a_cache_in_8_bits(tmp_path: Path) -> None:
    write(tmp_path / "code/llama2-70b-99/harness_llm/models/llama2-70b/offline_mi300x.yaml", YAML)
    said = told(tmp_path, "8xMI300X_2xEPYC", "llama2-70b", "Offline")
    assert isinstance(said, dict)
    assert (said["scheduler_steps"], said["kv_dtype"], said["max_num_seqs"]) == (11, "fp8", 1792)


def test_a_row_has_the_configuration_and_what_the_log_says(tmp_path: Path) -> None:
    folder = tmp_path / "v5.1/closed/NVIDIA"
    write(folder / "configs/B200x8/Server/llama2-70b.py", DICTIONARIES)
    about = {"accelerator_model_name": "NVIDIA B200-SXM-180GB", "framework": "TensorRT 10.11, CUDA 12.9",
             "accelerators_per_node": 8, "number_of_nodes": 1}  # fmt: skip
    write(folder / "systems/B200x8_TRT.json", json.dumps(about))
    log = """Completed samples per second    : 100.0
Completed tokens per second: 27000.0
Scheduled samples per second : 101.0
Mean latency (ns)                : 20000000000
Mean First Token latency (ns)                : 250000000
Mean Time to Output Token (ns)               : 70000000
ttft_latency (ns): 2000000000
tpot_latency (ns): 200000000
"""
    for accuracy in ("99", "99.9"):
        run = f"results/B200x8_TRT/llama2-70b-{accuracy}/Server/performance/run_1"
        write(folder / run / "mlperf_log_summary.txt", log)
    write_lengths(tmp_path)
    write_answers(tmp_path)
    (row,), reasons = rows_of(tmp_path)
    assert reasons.most_common(1)[0][0] == "another accuracy of the same configuration"
    assert (row["gpu"], row["gpus"], row["replicas"], row["version"], row["rate"]) == ("b200", 8, 4, "0.21", 101.0)
    assert (row["ttft_mean_ms"], row["tpot_limit_ms"], row["in_flight"], row["held_out"]) == (250, 200, 2000, False)
    assert min(row["input_len"]) < 100 < max(row["input_len"]) <= 700
    assert max(row["output_len"]) > 3 * 270  # as in the test, which was looked for in another folder


def write_answers(folder: Path) -> None:
    page = "v5.1/closed/NVIDIA/compliance/B200/llama2-70b-99/Offline/TEST06/accuracy/mlperf_log_accuracy.json"
    lines = [f'{{ "seq_id" : {n}, "qsl_idx" : 1, "data" : "{"00000001" * n}" }},' for n in (10, 20, 30, 400)]
    write(folder / page, "[\n" + "\n".join(lines))


def test_lengths_have_the_mean_that_is_said(tmp_path: Path) -> None:
    write_answers(tmp_path)
    found = answers("llama2-70b", 273.0, tmp_path)
    assert sum(found) / len(found) == pytest.approx(273, rel=0.01)
    assert min(found) < 100 < max(found) <= 1024
    write_lengths(tmp_path)
    read = prompts("llama2-70b", tmp_path)
    assert sum(read) / len(read) == pytest.approx(250, rel=0.01)


def test_pairs_that_hardly_differ_have_no_order() -> None:
    assert ordered([[(1.0, 1.0), (2.0, 3.0), (2.05, 1.0)], [(1.0, 2.0), (3.0, 1.0)]]) == "1 of 3 in the right order"


def test_whole_experts_of_engines_that_share_them_are_a_table_s_degree() -> None:
    """A switch was passed on, 1, which a table's degree of none is, too: experts were cut over all engines."""
    row = {"model": "deepseek-r1", "tp": 8, "replicas": 1, "ep": 8}
    for together, dp in ((1, 8), (0, 1)):
        said = degrees({**row, "attention_dp": together})
        assert (said["ep"], said["dp"]) == (8, dp)
