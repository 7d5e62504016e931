"""`autoscout calibrate`: it measures, ends when asked to, and what it wrote is what predictions use."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from record_files import forget, own_records

from autoscout.machine.calibrate import Calibration, write
from autoscout.machine.device_fits import Groups, fit_record, likest
from autoscout.simulate.hardware.device import all_hardware
from autoscout.simulate.hardware.roofline import flash, gemm
from autoscout.simulate.serving import operators as op
from autoscout.simulate.serving.serving_device import device

COMMAND = [sys.executable, "-m", "tui.cli", "calibrate", "--quick"]


def environment(folder: Path) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if k != "AUTOSCOUT_KB"}
    return {**clean, "XDG_DATA_HOME": str(folder)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("data")
    done = subprocess.run([*COMMAND, "--json"], capture_output=True, text=True, timeout=6000, env=environment(folder))
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.thorough
def test_measures_this_machine(measured):
    folder, document = measured
    assert document["device"] == "cpu"
    assert Path(document["file"]) == folder / "autoscout" / "hardware" / "cpu.toml"
    hw = document["record"]
    assert hw["peak_tflops"]["fp32"] > 0
    assert hw["memory_gb_s"] > 0
    assert hw["cores"] == len(os.sched_getaffinity(0))
    assert all(0 <= error < math.inf for error in document["errors"].values())
    if hw["cores"] > 1:
        assert hw["island"]["all_reduce"]["latency_us"][0] > 0
        assert hw["island"]["ring_gb_s"] == 0, "this machine's links are measured: others' do not matter"


@pytest.mark.thorough
def test_predictions_use_it(measured):
    """Both models know the device by its name from now on; the serving model knew no CPU before."""
    folder, document = measured
    script = (
        "import json, numpy as np\n"
        "from autoscout.simulate.hardware.device import hardware\n"
        "from autoscout.simulate.serving.simulator import ServingSimulator\n"
        "columns = dict(layers=4, hidden=256, heads=4, head_dim=64, ffn=1024, vocab=2048, gpu='cpu', batch=8)\n"
        "columns |= dict(input_len=96, output_len=24)\n"
        "member = ServingSimulator('tpot_mean_ms')\n"
        "why_not = member.applies(columns)\n"
        "value = None if why_not else float(member.predict(columns).value[0])\n"
        "found = hardware('cpu')\n"
        "print(json.dumps([found and found.memory_gb_s, why_not, value]))"
    )
    answers = []
    for where in (folder, folder / "empty"):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=1800, env=environment(where)
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    (rate, why_not, value), (_, without, nothing) = answers
    assert rate == pytest.approx(document["record"]["memory_gb_s"], rel=1e-4)
    assert why_not == ""
    assert value > 0
    assert "no constants for cpu" in without
    assert nothing is None


@pytest.mark.parametrize(
    ("python", "sentence"),
    [(f"{sys.executable} -S", "has no torch"), ("/nowhere/python", "there is no such interpreter")],
)
def test_without_torch_it_says_so(tmp_path, python, sentence):
    done = subprocess.run(
        [*COMMAND, "--python", python], capture_output=True, text=True, timeout=1800, env=environment(tmp_path)
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.toml"))


def test_a_name_that_is_no_file_name_is_refused(tmp_path):
    done = subprocess.run(
        [*COMMAND, "--name", "../etc"], capture_output=True, text=True, timeout=1800, env=environment(tmp_path)
    )
    assert done.returncode == 2
    assert "becomes a file" in done.stderr


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.engine
@pytest.mark.parametrize(("dies", "rows"), [("1", 0), pytest.param("nobody", 15, marks=pytest.mark.thorough)])
def test_a_rank_that_dies_is_not_waited_for(dies: str, rows: int, tmp_path: Path) -> None:
    """The others waited for half an hour, ten minutes on GPUs; and what a library says beside the rows is no row."""
    pytest.importorskip("torch")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if sys.orig_argv[-2:-1] == ['2']:\n"
        "    print('NCCL INFO Bootstrap')\n"
        f"    if sys.orig_argv[-3] == {dies!r}: os._exit(3)\n"
    )
    leash = "autoscout/running/worker/leash.py"
    code = (
        "import runpy, sys; sys.path.insert(0, ''); sys.argv = ['microbench.py', 'cpu', '1']\n"
        f"runpy.run_path('autoscout/machine/microbench.py')['collectives']({leash!r})"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == rows
    assert ("collectives of 2 ranks failed" in done.stderr) == (rows == 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupting_it_leaves_no_process(tmp_path, number):
    # A shell that runs the tests in the background has them ignore Ctrl-C, and children inherit that.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    running = subprocess.Popen(COMMAND, stderr=subprocess.PIPE, text=True, env=environment(tmp_path))
    signal.signal(signal.SIGINT, heard)
    assert running.stderr is not None
    assert "measured: device" in running.stderr.readline()
    family = psutil.Process(running.pid).children(recursive=True)
    assert family
    running.send_signal(number)
    code = running.wait(timeout=1800)
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    deadline = time.monotonic() + 240
    while any(lives(p) for p in family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [p for p in family if lives(p)]
    assert not list(tmp_path.rglob("*.toml"))


def benchmarks_of(name: str) -> Groups:
    """What the micro-benchmarks would find on a device that is exactly as its constants say."""
    hw, d = all_hardware()[name], device(name)
    shapes = [(m, n, k) for m in (1, 16, 128, 1024, 4096) for n, k in ((4096, 4096), (12288, 4096), (4096, 12288))]

    def product(dtype: str, m: int, n: int, k: int) -> float:
        return float(1e6 * gemm(hw, np.array([float(m)]), np.array([float(n)]), np.array([float(k)]), dtype)[0])

    def attention(batch: int, length: int) -> list[float]:
        b, h, t, d = (np.array([float(x)]) for x in (batch, 32, length, 128))
        us = float(1e6 * flash(hw, b, h, t, t, d, "bf16")[0])
        return [batch, 32, length, 128, us, us * (1 + 2.5 / 0.85)]

    decode = [
        [b, 32, c, 128, float(op.decode_us(d.decode, float(b), float(b * c), 32 * 128 * 4, 1.0))]
        for b in (1, 8, 32)
        for c in (512, 2048, 8192)
    ]
    curve = hw.island.all_reduce
    sizes = (2**12, 2**16, 2**20, 2**24)
    return {
        "device": [
            {
                "name": "NVIDIA A100-SXM4-80GB",
                "multiprocessors": hw.multiprocessors,
                "memory_gib": hw.memory_gib,
                "count": 2,
            }
            | {"context_gib": 0.5, "kind": "cuda", "torch": "2"}
        ],
        "gemm": [[t, m, n, k, product(t, m, n, k)] for t in ("bf16", "fp32") for m, n, k in shapes],
        "memory": [
            ["copy", 2**28, 2**28 / hw.memory_gb_s * 1e-3],
            ["norm", 2**28, 2**28 / hw.memory_gb_s * 2e-3],
            ["launch", 0, 3.0],
        ],
        "prefill": [attention(b, length) for b in (1, 4) for length in (256, 1024, 4096)],
        "decode": decode,
        "host": [["forward", 5.0]],
        "collectives": [["all_reduce", 2, s, curve.latency_us[0] + 1e-3 * s / curve.bus_gb_s[0]] for s in sizes],
    }


def test_the_fits_find_the_device_behind_the_benchmarks(tmp_path, monkeypatch):
    """And what they write is a record that predictions read, like the shipped one that the driver's name means."""
    groups = benchmarks_of("a100")
    record, errors = fit_record(groups, "mine")
    assert errors["gemm"] < 0.10
    assert errors["attention"] < 0.05
    assert errors["serving decode"] < 0.02
    assert record["like"] == "a100"
    assert record["elementwise"]["norm_bandwidth"] == pytest.approx(0.5)
    assert record["attention"]["backward"] == pytest.approx(0.85, rel=0.01)
    curve = all_hardware()["a100"].island.all_reduce
    assert record["island"]["all_reduce"]["bus_gb_s"][0] == pytest.approx(curve.bus_gb_s[0], rel=0.05)
    assert record["serving"]["decode"]["gb_s"] == pytest.approx(device("a100").decode.gb_s, rel=0.05)
    experts = device("a100").experts
    with own_records(tmp_path, monkeypatch) as folder:
        write(Calibration("mine", record, errors, 1.0), folder)
        forget()
        assert all_hardware()["mine"].memory_gb_s == pytest.approx(record["memory_gb_s"])
        assert device("mine").experts.overhead_us == experts.overhead_us
        assert device("mine").borrowed == ["experts", "host"]


@pytest.mark.parametrize(
    ("facts", "like"),
    [
        ({"name": "NVIDIA H200", "capability": 9.0}, "h200"),
        ({"name": "NVIDIA A100 80GB PCIe", "capability": 8.0}, "a100-pcie"),
        ({"name": "NVIDIA H20", "capability": 9.0}, "h20"),
        ({"name": "NVIDIA X900", "capability": 9.0}, "h100"),
        ({"name": "Quadro RTX 6000", "capability": 7.5}, "rtx-8000"),
        ({"name": "AMD Instinct MI400X", "capability": 0.0, "vendor": "amd"}, "mi300x"),
        ({"name": "AMD EPYC 7B13", "kind": "cpu"}, "cpu"),
    ],
)
def test_what_is_measured_is_like_the_nearest_device_that_ships(facts, like):
    assert likest({"kind": "cuda", **facts}) == like
