"""What only ranks on GPUs run, with Transformer Engine or the driver replaced by what says how it was called."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path("autoscout/targets/megatron/worker").resolve()
# As in Transformer Engine's pytorch/module/base.py: names and arguments of 2.6, and the modes that came with 2.7.
USER_BUFFERS = """
import enum, json, sys, types
sys.path.insert(0, sys.argv[1])
import train; train.load("cpu")
import building
from megatron.core import utils

class Modes(enum.Enum):
    NONE = "none"
    FP8 = "fp8"

def initialize_ub(shape, tp_size, use_fp8=False, dtype=None, ub_cfgs=None, bootstrap_backend=None):
    print(json.dumps([shape, tp_size, "FP8" if use_fp8 else "NONE", ub_cfgs["proj_dgrad"], bootstrap_backend]))

def initialize_ub_27(shape, tp_size, use_fp8=False, quantization_modes=None, **rest):
    initialize_ub(shape, tp_size, quantization_modes == [Modes.FP8], **rest)

for version, named in ("2.6.0", {"initialize_ub": initialize_ub}), ("2.7.0", {"initialize_ub": initialize_ub_27,
        "UserBufferQuantizationMode": Modes}):
    module = types.SimpleNamespace(base=types.SimpleNamespace(**named))
    sys.modules["transformer_engine"] = types.SimpleNamespace(__version__=version)
    sys.modules["transformer_engine.pytorch"] = types.SimpleNamespace(module=module)
    utils._te_version = None
    for fp8 in None, "hybrid":
        shape = types.SimpleNamespace(context_parallel_size=2, hidden_size=64, tensor_model_parallel_size=4, fp8=fp8)
        config = {"seq_len": 128, "micro_batch": 2, "given": {"tp_comm_overlap_cfg": 14}}
        building.start_user_buffers(config, shape)
"""


@pytest.mark.engine
def test_user_buffers_are_of_the_layers_precision() -> None:
    """A layer in fp8 asks for buffers of its own, and raises where there are only others (Transformer Engine's
    get_ub)."""
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("needs the megatron extra")
    words = [sys.executable, "-W", "ignore", "-c", USER_BUFFERS, str(WORKER)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said == [[[128, 64], 4, of, {"num_sm": 14}, "nccl"] for of in ("NONE", "FP8", "NONE", "FP8")]
