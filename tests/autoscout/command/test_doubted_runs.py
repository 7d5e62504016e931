"""A configuration of a trainer's line that is doubted to fit is shadowed before it costs an experiment."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from autoscout.targets.command.doubted import doubts
from autoscout.targets.command.profiler import CommandProfiler
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import Configuration

engine = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
    pytest.mark.timeout(300),
]
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 4096, "vocab_size": 32000,
}  # fmt: skip
# Four GiB of weights, gradients and moments in each batch's sample.
SCRIPT = """
import argparse, pathlib, torch
parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int)
said, _ = parser.parse_known_args()
model = torch.nn.Linear(16384, 16384 * said.per_device_train_batch_size, bias=False, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    model(torch.randn(1, 16384, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def written(folder: Path, memory_gib: float) -> Path:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    (folder / "run_clm.py").write_text(SCRIPT)
    path = folder / "job.toml"
    path.write_text(
        f"""name = "own"
task = "finetune"
target = "command"
[traffic]
global_batch = 8
seq_len = 1024
[objective]
minimize = "step_time_s"
[model]
from = "{folder}/model/config.json"
[cluster]
nodes = [{{ device = "h100", count = 1, memory_gib = {memory_gib} }}]
[launch]
script = "hf-trainer"
python = "{sys.executable}"
path = "{folder}"
current = "python run_clm.py --model_name_or_path model --bf16 --per_device_train_batch_size 1"
"""
    )
    return path


def configuration(space: JobSpace, mbs: int) -> Configuration:
    return Configuration({**space.reference.knobs, "mbs": mbs})


class TestOfATrainersLine:
    pytestmark = engine

    def test_what_its_shadow_says_does_not_fit_is_not_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AUTOSCOUT_KB", str(tmp_path / "kb.duckdb"))
        job = load_job(written(tmp_path, 8.0))
        space = JobSpace.of_job(job)
        known = doubts(job)
        assert known.foretold(configuration(space, 1), "a") is None  # it takes 4 GiB of 8, or is not even doubted
        found = known.foretold(configuration(space, 8), "b")
        assert found is not None
        assert (found.status, found.fidelity) == ("oom", "shadow")
        assert "does not fit into 8 GiB" in found.evidence
        assert known.foretold(configuration(space, 8), "b") is None  # once
        ran = CommandProfiler(job).run(configuration(space, 8), "b", tmp_path / "0001")
        assert (ran.status, ran.fidelity) == ("oom", "shadow")
        assert not (tmp_path / "0001" / "output.log").exists()

    def test_shadows_without_an_answer_are_not_asked_for_ever(self, tmp_path: Path) -> None:
        """A script that no shadow can follow costs two of them."""
        job_file = written(tmp_path, 4.0)
        (tmp_path / "run_clm.py").write_text("raise SystemExit('no')")
        job = load_job(job_file)
        space, asked = JobSpace.of_job(job), []
        known = doubts(job)
        trace = known._traced
        known._traced = lambda *given: (asked.append(1), trace(*given))[1]  # type: ignore[method-assign]
        for mbs in (2, 4, 8):
            assert known.foretold(configuration(space, mbs), "a") is None
        assert len(asked) == 2


def test_what_certainly_fits_is_not_asked(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, 80.0))
    known = doubts(job)
    known._traced = lambda *_: pytest.fail("nothing is doubted")  # type: ignore[method-assign]
    assert known.foretold(configuration(JobSpace.of_job(job), 1), "a") is None
