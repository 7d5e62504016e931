"""Ranks that are forked from a process that has imported everything, on GPUs."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from autoscout.running.torchrun import Torchrun
from autoscout.targets.jobs import load_job
from autoscout.targets.megatron.profiler import RANK, MegatronProfiler, profiler
from kb.records import Configuration

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed here")


def test_imports_are_told_what_a_child_saw_and_do_not_open_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    import forkable  # not at the top: torch takes seconds of every worker that collects tests
    import torch

    parent = os.getpid()
    monkeypatch.setattr(forkable, "_properties", lambda: {"major": 9, "minor": 0, "asked_in": os.getpid()})
    real = torch.cuda.get_device_properties
    with forkable.imports():
        seen = torch.cuda.get_device_properties(torch.cuda.current_device())
        assert torch.cuda.get_device_capability() == (9, 0)
        assert seen.asked_in != parent
    assert torch.cuda.get_device_properties is real
    assert not torch.cuda.is_initialized()


@pytest.mark.thorough
@pytest.mark.engine
def test_where_a_forked_rank_could_not_use_the_gpu_ranks_are_started_afresh(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU, which a forked rank can use")
    job = load_job("fixtures/jobs/llama-3.2-3b.toml")
    found = profiler(job)
    assert isinstance(found, MegatronProfiler)
    try:
        found._launcher.start(lambda: False)
        assert found._launcher.unfit
    finally:
        found.close()
    assert not Torchrun(job, RANK).unfit
    assert found.run(Configuration({"mbs": 1}), "mbs1", tmp_path).status == "infrastructure"  # no GPU, in one sentence
