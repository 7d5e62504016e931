"""What only ranks on GPUs run, with Transformer Engine or the driver replaced by what says how it was called."""

import importlib.util
import json
import os
import shutil
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
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said == [[[128, 64], 4, of, {"num_sm": 14}, "nccl"] for of in ("NONE", "FP8", "NONE", "FP8")]


# Of three GPUs the second is cut into slices, which have no utilization of their own, and the third falls off the bus.
NVML = """
#include <stdlib.h>
static int lost(void *gpu) { return gpu == (void *)3 && getenv("LOST"); }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return getenv("GONE") ? 999 : 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **gpu) { *gpu = (void *)(i + 1L); return lost(*gpu) ? 15 : 0; }
int nvmlDeviceGetUtilizationRates(void *gpu, unsigned *busy) { *busy = 75; return gpu == (void *)2 ? 3 : 0; }
int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long *m) { m[0] = 80ULL << 30; m[2] = 60ULL << 30; return 0; }
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *mw) { *mw = 650500; return 0; }
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *c) { *c = 61; return gpu == (void *)2 ? 3 : 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for a driver's library")
def test_a_meter_reads_what_the_driver_tells_of_each_gpu(tmp_path: Path) -> None:
    """A driver that stopped answering ended the screen's thread, and a slice without utilization was left out."""
    pytest.importorskip("pynvml")
    (tmp_path / "nvml.c").write_text(NVML)
    library, source = str(tmp_path / "libnvidia-ml.so.1"), str(tmp_path / "nvml.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    code = (
        "import json, os; from autoscout.machine.telemetry import Meter; import msgspec\n"
        "meter, said = Meter(), []\n"
        "for name in 'ALL', 'LOST', 'GONE':\n"
        "    os.environ[name] = '1'; os.putenv(name, '1')\n"
        "    said.append(msgspec.to_builtins(meter.read()))\n"
        "print(json.dumps(said))"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PATH": os.defpath}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    everything, lost, gone = json.loads(done.stdout)
    usual = {"busy": 0.75, "memory_gib": 60.0, "memory_total_gib": 80.0, "power_w": 650.5, "temperature_c": 61}
    assert everything["gpu 0"] == everything["gpu 2"] == usual
    assert everything["gpu 1"] == {**usual, "busy": 0.0, "temperature_c": None}
    assert sorted(lost) == ["gpu 0", "gpu 1"]
    assert sorted(gone) == ["cpu"]


@pytest.mark.engine
def test_weights_are_filled_under_megatron_fsdp_too() -> None:
    """Its wrapper has no list of buffers: every configuration with fsdp failed where Megatron-LM's script trains."""
    pytest.importorskip("torch")
    code = (
        f"import sys, types; sys.path.insert(0, {str(WORKER)!r})\n"
        "import megatron_lm, torch\n"
        "training = types.SimpleNamespace(get_model=lambda provide: [torch.nn.Linear(3, 2)])\n"
        "built = {}\n"
        "megatron_lm._fill_weights(training, {'arguments': {'--use-megatron-fsdp': True}}, lambda phase: None, built)\n"
        "training.get_model(None)\n"
        "print(built)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800, check=False)
    assert done.stdout.strip() == "{'parameters': 8, 'buckets': 0}", done.stderr
