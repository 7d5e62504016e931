"""What the presets read in logs that were recorded from real runs; each begins with its versions and its command."""

from pathlib import Path

import msgspec
import pytest

from autoscout.targets.command.failures import despite
from autoscout.targets.command.measurement import readings, uneven
from autoscout.targets.command.preset import names, preset
from autoscout.targets.command.reading import MetricReader, Stream
from kb.records import MetricSource

LOGS = Path(__file__).parents[3] / "fixtures" / "recorded" / "logs"
# What has to be read, a value an iteration; times are those of the test, a second a line.
READ = {
    "deepspeed-engine": {
        "samples_per_s": [19.81066344582952, 17.052931226946896, 15.36228364074374],
        "peak_memory_gib": [0.52, 0.52, 0.52],
    },
    "trl": {
        "loss": [6.241, 6.253, 6.253, 6.269],
        "grad_norm": [0.2502, 0.2558, 0.218, 0.2396],
        "tokens_per_s": [507, 512, 512],
        "step_time_s": [1, 1, 1],
    },
    "grpo": {
        "loss": [-0.5428, -0.7586, -0.3646, -0.471],
        "reward": [0.5186, 0.4307, 0.5537, 0.4873],
        "reward_std": [0.296, 0.313, 0.3119, 0.2349],
        "grad_norm": [0.6529, 1.19, 0.7128, 0.9044],
    },
    "hf-trainer-accelerate": {
        "loss": [6.258, 6.221, 6.261, 6.249],
        "grad_norm": [1.623, 2.188, 1.577, 1.27],
        "step_time_s": [1, 1, 1],
    },
    "llamafactory": {
        "loss": [7.605, 7.54, 7.482, 7.432, 7.393, 7.366],
        "grad_norm": [6.532, 6.533, 6.673, 6.801, 6.903, 6.975],
        "step_time_s": [1, 1, 1, 1, 1],
    },
    "litgpt": {
        "loss": [6.296, 6.301, 6.217],
        "step_time_s": [8, 8],
    },
    "swift": {
        "loss": [5.759, 5.747, 5.762, 5.739, 5.741, 5.754],
        "grad_norm": [1.546, 1.711, 1.329, 1.621, 1.439, 1.403],
        "step_time_s": [1, 1, 1, 1, 1],
    },
    "axolotl": {
        "loss": [5.568, 5.551, 5.562, 5.549, 5.562, 5.574],
        "grad_norm": [0.3017, 0.3047, 0.2976, 0.2768, 0.2869, 0.3331],
        "tokens_per_s": [162, 207, 204, 200, 218],
        "peak_memory_gib": [0] * 7,
        "step_time_s": [1, 1, 1, 1, 1],
    },
    "torchtune": {
        "loss": [6.442619323730469, 6.433074474334717, 6.4445953369140625, 6.448140621185303, 6.443469524383545],
        "grad_norm": [
            0.1125330701470375,
            0.11407119780778885,
            0.11308818310499191,
            0.1126975417137146,
            0.11189555376768112,
        ],
        "tokens_per_s_per_gpu": [
            3395.08935546875,
            3951.32373046875,
            4013.215576171875,
            5824.58740234375,
            2311.748779296875,
        ],
        "step_time_s": [2, 2, 2, 2],
    },
    "torchtitan": {  # both ranks say each step
        "loss": [x for x in (8.05342, 8.13908, 8.01982, 7.94284) for _ in range(2)],
        "grad_norm": [x for x in (1.0743, 1.0748, 1.0869, 1.0922) for _ in range(2)],
        "step_time_s": [2, 2, 2],
    },
    "vllm-bench": {
        "requests_per_s": [38.4],
        "output_tokens_per_s": [614.38],
        "total_tokens_per_s": [1843.14],
        "ttft_mean_ms": [413.69],
        "ttft_p99_ms": [697.52],
        "tpot_mean_ms": [9.52],
        "tpot_p99_ms": [12.7],
    },
    "megatron-lm": {
        "loss": [6.470419, 6.467474, 6.450533, 6.441865, 6.424744, 6.429839],
        "step_time_ms": [1876.0, 1628.6, 1263.8, 1298.6, 1559.7, 1709.4],
        "grad_norm": [0.849, 0.853, 0.881, 1.042, 1.081, 0.962],
        "peak_memory_mib": [0, 0],
    },
}
PRESET: dict[str, str] = {"hf-trainer-accelerate": "hf-trainer"}


def read(name: str, log: bytes) -> dict[str, list[float]]:
    """Line after line, a second each."""
    sources = {
        metric: MetricSource(pattern=source) if isinstance(source, str) else source
        for metric, source in preset(name).metrics.items()
    }
    numbers = {metric: MetricReader(source) for metric, source in sources.items()}
    stream = Stream(list(numbers.values()))
    for second, line in enumerate(log.split(b"\n")):
        stream.feed(line + b"\n", float(second))
    return {metric: found.values for metric, found in numbers.items()}


@pytest.mark.parametrize("name", READ)
def test_a_recorded_log_is_read(name: str):
    log = (LOGS / f"{name}.log").read_bytes()
    assert log.startswith(b"# ")
    found = read(PRESET.get(name, name), log)
    assert {metric: found[metric] for metric in READ[name]} == READ[name]


@pytest.mark.parametrize("name", ["axolotl", "grpo", "hf-trainer", "llamafactory", "swift", "swift-megatron", "trl"])
def test_numbers_of_the_trainer_may_have_an_exponent(name: str):
    """It prints four digits: a loss of 1.25e-05 was read as 1.25, and a norm of 1.234e+04 as 1.234."""
    log = b"{'loss': '%s', 'grad_norm': '%s', 'learning_rate': '5e-05', 'epoch': '0.5'}\n"
    found = read(name, log % (b"1.25e-05", b"1.234e+04") + log % (b"nan", b"nan") + log % (b"2.5", b"0.5"))
    assert [str(value) for value in found["loss"]] == ["1.25e-05", "nan", "2.5"]
    assert [str(value) for value in found["grad_norm"]] == ["12340.0", "nan", "0.5"]
    if name not in ("grpo", "swift-megatron"):  # whose times stand elsewhere
        assert found["step_time_s"] == [1, 1]


def test_lines_that_come_in_bursts_are_named_and_steps_that_merely_differ_are_not(job):
    """Redraws of a bar were 129 "iterations" for 78 steps, and 1.15 × faster was in truth 1.6 × slower."""
    metrics: dict[str, str | MetricSource] = {"step_time_s": MetricSource(between="it/s")}
    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, script="", metrics=metrics))
    assert uneven(job, [1.0, 0.01] * 4).startswith("4 of 8 steps took less than a tenth of the mean")
    assert uneven(job, [1.0, 0.5, 0.4, 3.0, 0.5, 0.6, 0.7, 0.3]) == ""
    assert uneven(job, [1.0, 0.01]) == ""


@pytest.mark.parametrize(("name", "memory"), [("axolotl", "peak_memory_gib"), ("megatron-lm", "peak_memory_mib")])
def test_a_memory_of_nothing_is_none(job, name: str, memory: str):
    """On CPUs the trainers count what no GPU has allocated: 0 GiB stood in the table as a measured peak."""
    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, script=name, metrics={}))
    values = read(name, (LOGS / f"{name}.log").read_bytes())
    assert memory not in readings(job, values).metrics
    found = readings(job, {**values, memory: [0.0, 3.5], "spilled_gib": [0.0]}).metrics
    assert (found[memory], found["spilled_gib"]) == (3.5, 0.0)


def test_a_load_test_whose_requests_fail_is_no_result(tmp_path: Path):
    log = (LOGS / "vllm-bench.log").read_text()
    assert despite(LOGS / "vllm-bench.log", preset("vllm-bench").failure) is None
    refused = tmp_path / "output.log"
    refused.write_text(
        log.replace("Failed requests:                         0", "Failed requests:                         3")
    )
    status, evidence = despite(refused, preset("vllm-bench").failure) or ("", "")
    assert status == "error"
    assert "the run ended with exit code 0, but printed: Failed requests: 3" in evidence


def test_every_preset_that_is_called_proven_has_a_recorded_log():
    recorded = {PRESET.get(path.stem, path.stem) for path in LOGS.glob("*.log")}
    assert {name for name in names() if preset(name).proven} <= recorded
