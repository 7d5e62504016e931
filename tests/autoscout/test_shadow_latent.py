"""Multi-head latent attention in shadows: Megatron-core's own modules, and what they keep for the backward pass."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoscout.simulate.shadow.traced import Rank
from autoscout.targets.megatron.environment import WORKER
from autoscout.targets.megatron.shadow import ask

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]
_HIDDEN, _HEADS = 256, 8
_RANKS = {"--q-lora-rank": 96, "--kv-lora-rank": 64, "--qk-head-dim": 32, "--qk-pos-emb-head-dim": 16}


def question(layers: int, **more: Any) -> dict[str, Any]:
    flags = {
        "--num-layers": layers,
        "--hidden-size": _HIDDEN,
        "--num-attention-heads": _HEADS,
        "--ffn-hidden-size": 512,
        "--seq-length": 128,
        "--max-position-embeddings": 128,
        "--vocab-size": 1024,
        "--micro-batch-size": 2,
        "--global-batch-size": 4,
        "--position-embedding-type": "rope",
        "--normalization": "RMSNorm",
        "--attention-dropout": 0.0,
        "--hidden-dropout": 0.0,
        "--swiglu": True,
        "--disable-bias-linear": True,
        "--untie-embeddings-and-output-weights": True,
        "--bf16": True,
        "--transformer-impl": "transformer_engine",
        "--no-rope-fusion": True,
        "--no-gradient-accumulation-fusion": True,
        "--no-bias-swiglu-fusion": True,
        "--multi-latent-attention": True,
        **_RANKS,
        "--v-head-dim": 32,
        "--kv-channels": 32,
        "--qk-layernorm": True,
    }
    return {
        "arguments": {**flags, **more},
        "device": "cuda",
        "world": 2,
        "rank": 0,
        "stand_ins": True,
        "te_version": "2.3.0",
        "flash": False,
        "workspace": 0,
        "micro_batches": 1,
    }


@pytest.fixture(scope="module")
def told() -> list[Rank]:
    split = {"--tensor-model-parallel-size": 2, "--sequence-parallel": True}
    asked = [question(2), question(3), question(2, **split), {**question(2), "flash": True}]
    return ask(asked, [sys.executable], 300.0)


def weights(layers: int) -> int:
    q, kv, key, position = _RANKS.values()
    attention = _HIDDEN * (q + kv + position) + q * _HEADS * (key + position) + kv * _HEADS * (key + 32)
    attention += _HEADS * 32 * _HIDDEN + q + kv + _HIDDEN  # and the norms of both latents and of the layer
    return layers * (attention + 3 * 512 * _HIDDEN + _HIDDEN) + 2 * 1024 * _HIDDEN + _HIDDEN


def test_its_weights_are_those_of_the_latent_projections(told: list[Rank]) -> None:
    assert [rank.verdict for rank in told] == ["starts"] * 4, [rank.message for rank in told]
    assert [rank.parameters for rank in told[:2]] == [weights(2), weights(3)]


def test_a_layer_keeps_what_the_real_module_saves(told: list[Rank]) -> None:
    """Of a layer more, byte for byte: what Megatron's operators save with real tensors, and the positions that a
    layer's rotary embedding remembers (fp32)."""
    saved = _saved(2, 3)
    positions = 128 * _RANKS["--qk-pos-emb-head-dim"] * 4
    grown = told[1].at_peak["activations"] - told[0].at_peak["activations"]
    assert grown == saved[3] - saved[2] + positions


def test_tensor_parallel_ranks_hold_less_of_it(told: list[Rank]) -> None:
    """Latents are projected down on every rank, and up to its own heads only."""
    assert told[2].parameters > told[0].parameters / 2
    assert told[2].at_peak["activations"] < 0.7 * told[0].at_peak["activations"]
    assert any(c[1].startswith("allgather") and c[2] == "tp" for c in told[2].collectives)


def test_flash_attention_is_not_used_where_keys_are_wider_than_values(told: list[Rank]) -> None:
    assert told[3].peak == told[0].peak


_REAL = """
import json, os, sys
sys.argv = ["real", "stand-ins"]
sys.path.insert(0, {oracle!r}); sys.path.insert(0, {worker!r})
import megatron_answers
megatron_answers._load(True)
megatron_answers._fake_every_group()
import building, configs, torch
from megatron.core import parallel_state, tensor_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

layers = next((n for n in {layers!r} if not os.fork()), 0)
if not layers:
    sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in {layers!r}))
question = json.loads({question!r})
question["arguments"]["--num-layers"] = layers
config = configs.read(question)
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
parallel_state.initialize_model_parallel(**configs.groups(config["given"]))
shape = building.transformer_config(config)
tensor_parallel.model_parallel_cuda_manual_seed(1234)
chunks, _ = building.build(config, shape, torch.device("cpu"))
model = chunks[0].module.module
held = {{p.untyped_storage().data_ptr() for p in model.parameters()}}
kept = {{}}

def pack(tensor):
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in held:
        kept[storage.data_ptr()] = (-(-storage.nbytes() // 512) * 512, tensor)
    return tensor

tokens = torch.zeros(2, 128, dtype=torch.int64)
places = torch.arange(128).repeat(2, 1)
with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
    loss = model(tokens, places, None, labels=tokens)
print("kept", layers, sum(size for size, _ in kept.values()))
"""


def _saved(*layers: int) -> dict[int, int]:
    """By number of layers: bytes of the storages that autograd keeps for the backward pass, in the allocator's
    granules, parameters left out."""
    oracle = Path(__file__).parent / "oracle"
    script = _REAL.format(oracle=str(oracle), worker=str(WORKER), question=json.dumps(question(0)), layers=layers)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = (line.split() for line in done.stdout.splitlines() if line.startswith("kept "))
    return {int(number): int(kept) for _, number, kept in said}
