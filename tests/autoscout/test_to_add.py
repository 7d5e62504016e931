"""docs/architecture.md, "To add …": a GPU and a release of an engine, each from a person's folder and followed from the
line that asks for it to the export of what won."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from record_files import own_engines, own_records

from autoscout.job.device_names import device_meant
from autoscout.simulate import engine_records
from autoscout.tuning.study import Study
from tui.cli import cli

PAGE = Path("docs/architecture.md").read_text()
TRAINED = """#!/bin/bash
#SBATCH --gres=gpu:z900:8
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 \\
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 \\
  --global-batch-size 128 --vocab-size 32000 --bf16 --transformer-impl transformer_engine --train-iters 100
"""
SERVED = """#!/bin/bash
#SBATCH --gres=gpu:h100:1
vllm serve meta-llama/Meta-Llama-3-8B-Instruct --max-model-len 8192 --max-num-seqs 32
"""


def block(begins: str) -> str:
    """The page's example that begins so."""
    [found] = re.findall(rf"```toml\n({re.escape(begins)}.*?)```", PAGE, re.DOTALL)
    return found


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code == code, done.output
    return done.output


def exported(job: Path, kb: str, metric: str, form: str) -> str:
    study = Study(str(job), kb=kb, profiles=1, warm_start="off", name="new")
    (first,) = study.ask()
    study.tell(first, {metric: 1.0})
    return run("export", study.session, "--format", form, "--kb", kb)


@pytest.mark.engine
def test_a_gpu_is_one_file(tmp_path, monkeypatch):
    pytest.importorskip("megatron")
    script, job, kb = tmp_path / "train.sbatch", tmp_path / "job.toml", str(tmp_path / "kb.duckdb")
    script.write_text(TRAINED)
    with own_records(tmp_path, monkeypatch, z900=block("name = ")):
        run("init", "--target", "megatron", "--out", str(job), str(script))
        assert 'device = "z900"' in job.read_text()
        assert device_meant("NVIDIA Z900 96GB HBM4", 95.0) == "z900"
        checked = run("check", str(job), code=1)  # which this machine has none of
        assert re.search(r"predicted +step_time_s of the reference [\d.]+", checked)
        assert "of 95.0 GiB" in checked
        assert re.search(r"W on average, [\d.]+ J a token", run("predict", str(job)))
        assert "starts" in run("shadow", str(job), "--kb", kb)
        run("tune", str(job), "--dry-run", "--kb", kb)
        assert "--gpus-per-node=8" in exported(job, kb, "step_time_s", "slurm")


def test_a_release_is_one_row(tmp_path, monkeypatch):
    script, job, kb = tmp_path / "serve.sbatch", tmp_path / "job.toml", str(tmp_path / "kb.duckdb")
    script.write_text(SERVED)
    shipped = (engine_records.folder() / "vllm.toml").read_text()

    def told() -> list[float]:
        """What `predict` and `check` say of its tokens per second."""
        texts = run("predict", str(job), "--kb", kb), run("check", str(job), "--kb", kb, code=1)  # no vLLM is here
        found = re.search(r"predicted, ([\d,.]+) output", texts[0]), re.search(r"reference ([\d,.]+) \(", texts[1])
        return [float(each[1].replace(",", "")) for each in found if each is not None]

    with own_engines(tmp_path, monkeypatch):
        run("init", "--target", "vllm", "--out", str(job), str(script))
        assert 'device = "h100"' in job.read_text()
        before = told()
    with own_engines(tmp_path, monkeypatch, vllm=f"{shipped}\n{block('[[release]]')}"):
        assert len(before) == 2
        assert all(now < 0.5 * then for now, then in zip(told(), before, strict=True))  # the host is the bottleneck
        assert "first experiment, your present launch" in run("tune", str(job), "--dry-run", "--kb", kb)
        assert "vllm serve" in exported(job, kb, "output_tokens_per_s", "command")
