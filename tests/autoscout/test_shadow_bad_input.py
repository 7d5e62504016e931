"""What a shadow says of models that it cannot trace, and of ones that no host could hold."""

import importlib.util
import os
import re
import sys

import numpy as np
import pytest
from cases import few

from autoscout.simulate.shadow.traced import Rank, Shadow
from autoscout.simulate.shadow.verdict import judged
from autoscout.targets.jobs import JobSpace
from autoscout.targets.megatron import shadow as shadows
from kb.records import Cluster, Configuration, Job, LaunchSettings, Model, Node, Objective, Traffic

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]
ALONE = {"tp": 1, "pp": 1, "cp": 1, "dp": 1, "mbs": 1}
# A person's own Megatron-core, whose model does something more with its losses.
FORK = """
import importlib.util, os, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name != "megatron.core.models.gpt.gpt_model":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        plain = spec.loader.exec_module

        def executed(module):
            plain(module)
            forward = module.GPTModel.forward

            def hooked(self, *args, **kwargs):
                import torch
                losses = forward(self, *args, **kwargs)
                exec(os.environ["HOOK"], {"losses": losses, "torch": torch})
                return losses

            module.GPTModel.forward = hooked

        spec.loader.exec_module = executed
        return spec

sys.meta_path.insert(0, Finder())
"""
OWN = "lambda x: x * 2, mutates_args=(), schema='(Tensor x) -> Tensor'"
HOOKS = [  # what the hook does, and what is said ("": a usual value is answered, and it goes on)
    (f"torch.library.custom_op('mine::twice', {OWN})(losses)", "mine::twice has no fake kernel, .*register_fake"),
    ("losses[losses > 0]", r"aten\.nonzero\.default returns as much as the values say"),
    ("torch.equal(losses, losses)", r"aten\.equal\.default reads values"),
    ("losses.detach().numpy()", r"\.numpy\(\) reads values"),
    ("losses.mean().item()", ""),
]


def job(**shape) -> Job:
    small = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 128}
    kind = {"gated": True, "norm": "rmsnorm", "bias": False, "position": "rope"}
    return Job(
        name="small",
        target="megatron",
        model=Model(**{**small, **kind, **shape}),
        traffic=Traffic(seq_len=32, global_batch=1),
        cluster=Cluster(nodes=[Node(device="h100", count=1)]),
        objective=Objective(minimize="step_time_s"),
        launch=LaunchSettings(transformer_engine=True),
    )


def asked(of: Job, **knobs) -> Rank:
    question = {**shadows.question_of(of, Configuration({**ALONE, **knobs})), "rank": 0}
    return shadows.ask([question], [sys.executable], 300.0)[0]


@pytest.mark.parametrize(("hook", "said"), few(HOOKS, 1))
def test_a_hook(hook, said, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(FORK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("HOOK", hook)
    rank = asked(job())
    if not said:
        assert rank.verdict == "starts", rank.message
        return
    bare = Shadow(job="j", name="n", configuration={}, verdict="starts", sentence="", world=1, ranks=[])
    sentence = judged(bare, [rank], 0.03, 1.0, 79.0, 1.5).sentence
    assert rank.verdict == "untraceable"
    assert re.match(rf"rank 0 cannot be traced without a GPU: {said}.* \(<string>:1 .*; measure it with", sentence)


def test_a_model_that_no_host_could_hold():
    """100 billion parameters on one rank: 1.8 TB with gradients and optimizer."""
    rank = asked(job(layers=2, hidden=2**16, heads=512, kv_heads=512, ffn=2**17))
    assert rank.verdict == "starts", rank.message
    assert rank.parameters > 80e9
    assert rank.peak > 18 * rank.parameters


def test_a_backward_pass_without_end_is_ended():
    """With biases the recomputed part of a layer returns one, and becomes its history: Megatron hangs in the first
    backward pass, and the host is soon out of memory."""
    of = job(gated=False, norm="layernorm", bias=True)
    knobs = {"ar": "selective", "ar_modules": "mlp"}
    rank = asked(of, **knobs)
    assert (rank.verdict, rank.type) == ("refused", "RecursionError")
    assert "without end" in rank.message
    space = JobSpace.of_job(of)
    rng = np.random.default_rng(0)
    assert not any("mlp" in str(space.sample(rng).knobs.get("ar_modules")) for _ in range(100))
    assert any("mlp" in str(JobSpace.of_job(job()).sample(rng).knobs.get("ar_modules")) for _ in range(100))
