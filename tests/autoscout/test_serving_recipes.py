"""What an expert begins a server with: engines that have room for the requests that come, and positions for them."""

import json
from pathlib import Path
from typing import Any

import pytest
from job_files import changed

from autoscout.deploy.export import launch
from autoscout.targets.jobs import JobSpace
from kb.records import AutoscoutError, Configuration

JOB = """
name = "dense"
task = "serve"
target = "vllm"
[model]
layers = 64
hidden = 5120
heads = 64
kv_heads = 8
head_dim = 128
ffn = 25600
vocab = 151936
gated = true
norm = "rmsnorm"
bias = false
position = "rope"
[traffic]
rate = 8.0
input_len = 2000
output_len = 300
[cluster]
nodes = [{ device = "h100", count = 4 }]
[objective]
maximize = "output_tokens_per_s"
"""


@pytest.mark.parametrize(
    ("changes", "tp"),
    [
        ([], 2),  # 61 GiB of weights leave 9 for the 18 requests that are each engine's, of 0.56 GiB
        ([("rate = 8.0", "rate = 1.0")], 1),
        ([("rate = 8.0", "concurrency = 96")], 2),
        ([("input_len = 2000", "input_len = 60000")], 2),  # more than any has room for
        ([("rate = 8.0", "rate = 0.1"), ("input_len = 2000", "input_len = 60000")], 2),  # one request takes 15 GiB
    ],
)
def test_engines_have_room_for_what_runs_together_and_for_the_longest_request(
    tmp_path: Path, changes: list[tuple[str, str]], tp: int
) -> None:
    knobs = JobSpace.of_job(changed(tmp_path, JOB, *changes)).reference.knobs
    assert (knobs["tp"], knobs["dp"]) == (tp, 4 // tp)


@pytest.mark.parametrize(("device", "tokens"), [("a100", 2048), ("a800", 8192), ("h100", 8192), ("h200", 8192)])
def test_steps_are_as_large_as_vllm_makes_them_on_the_device(tmp_path: Path, device: str, tokens: int) -> None:
    """vLLM goes by the driver's name, so an A800, which is no other chip than an A100, takes an H100's."""
    space = JobSpace.of_job(changed(tmp_path, JOB, ('"h100"', f'"{device}"')))
    assert space.reference.knobs["max_num_batched_tokens"] == tokens


@pytest.mark.parametrize(
    ("config", "more", "refused"),
    [
        ({"max_position_embeddings": 2048}, "", True),
        ({"max_position_embeddings": 2304}, "", False),
        ({"max_position_embeddings": 2048, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "", True),
        ({"max_position_embeddings": 2048, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "", False),
        ({"max_position_embeddings": 2048}, 'environment = { VLLM_ALLOW_LONG_MAX_MODEL_LEN = "1" }', False),
        (
            {"max_position_embeddings": 2048},
            "current = 'vllm serve x --hf-overrides.max_position_embeddings 9000'",
            False,
        ),
        ({}, "", False),
        ([], "", False),
        (None, "", False),
    ],
)
def test_requests_longer_than_the_models_positions_are_refused_before_an_engine_starts(
    tmp_path: Path, config: Any, more: str, refused: bool
) -> None:
    """The longest has 2,300 tokens, an engine for it 2,304: vLLM refuses it while it reads its arguments."""
    model = tmp_path / "model"
    model.mkdir()
    if config is not None:
        (model / "config.json").write_text(json.dumps(config))
    job = ("[objective]", f'[launch]\nmodel_path = "{model}"\n{more}\n[objective]')
    if not refused:
        changed(tmp_path, JOB, job)
        return
    with pytest.raises(AutoscoutError, match=r"takes 2304 tokens.* positions for 2048, so vLLM refuses") as raised:
        changed(tmp_path, JOB, job)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("current", "told"), [("", True), ("vllm serve x -tp 2", True), ("vllm serve x --max-model-len 8192", False)]
)
def test_an_export_says_which_requests_its_server_will_refuse(tmp_path: Path, current: str, told: bool) -> None:
    job = changed(tmp_path, JOB, ("[objective]", f'[launch]\ncurrent = "{current}"\n[objective]'))
    found = launch(job, JobSpace.of_job(job).reference, "x", "measured")
    assert any("--max-model-len" in text and "2304 tokens" in text for text in found.missing) == told


def test_an_export_says_for_how_many_users_it_was_measured(tmp_path: Path) -> None:
    """More requests at once than users are the same run, so a larger limit was never tried."""
    for load, seqs, told in (
        ("rate = 8.0", 8, []),
        ("concurrency = 24", 8, ["than the 24 of [traffic]: requests beyond 32 wait"]),
        ("concurrency = 24", 16, []),
    ):
        job = changed(tmp_path, JOB, ("rate = 8.0", load))
        tried = Configuration({**JobSpace.of_job(job).reference.knobs, "tp": 1, "dp": 4, "max_num_seqs": seqs})
        found = launch(job, tried, "x", "measured")
        assert [text.split("at once ")[1] for text in found.missing if "--max-num-seqs" in text] == told
