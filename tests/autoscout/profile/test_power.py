"""Power limits that are taken back, also for a holder that was killed; joules by the driver's counter. The driver is a
program and a library of the same names that keep their numbers in files."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from autoscout.job.load import read_job
from autoscout.running import power
from autoscout.targets.jobs import JobSpace, load_job, target_of
from autoscout.targets.megatron.measurement import measurement
from kb.records import AutoscoutError, Cluster, Configuration, Node, Objective, SpaceLimits

SMI = """#!/bin/sh
case "$1" in
  --query-gpu=*) for i in 0 1; do echo "$i, GPU-$i, $(cat {folder}/limit$i), 700.00, 200.00"; done ;;
  -i) [ -e {folder}/forbidden ] && echo "Insufficient Permissions" && exit 4
      echo "$4" > {folder}/limit$2 ;;
esac
"""
CAPPED = Configuration({"mbs": 1, "power_cap": 80})


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for i, watts in enumerate((700, 650)):
        (tmp_path / f"limit{i}").write_text(f"{watts}.00")
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.replace("{folder}", str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def limits(folder: Path) -> list[float]:
    return [float((folder / f"limit{i}").read_text()) for i in (0, 1)]


def test_a_cap_holds_for_the_experiment_and_is_taken_back(driver: Path) -> None:
    def breaks() -> None:
        with power.capped(CAPPED):
            assert limits(driver) == [560.0, 560.0]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        breaks()
    assert limits(driver) == [700.0, 650.0]
    assert not power.left_path().exists()
    with power.capped(Configuration({"mbs": 1, "power_cap": 20})):
        assert limits(driver) == [200.0, 200.0]  # no less than the driver allows


def test_only_what_is_visible_is_capped(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with power.capped(CAPPED):
        assert limits(driver) == [700.0, 560.0]
    assert limits(driver) == [700.0, 650.0]


def test_what_a_killed_holder_left_is_taken_back_before_the_next_experiment(driver: Path) -> None:
    code = (
        "import time; from autoscout.running import power; from kb.records import Configuration\n"
        "with power.capped(Configuration({'power_cap': 80})):\n    print('capped', flush=True); time.sleep(60)"
    )
    held = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert held.stdout is not None
    assert held.stdout.readline() == "capped\n"
    held.send_signal(signal.SIGKILL)
    held.wait()
    held.stdout.close()
    assert limits(driver) == [560.0, 560.0]
    with power.capped(Configuration({"mbs": 1})):
        assert limits(driver) == [700.0, 650.0]
    assert not power.left_path().exists()


def test_what_another_user_wrote_there_is_no_order_to_us(driver: Path) -> None:
    power.left_path().write_text('{"0": 100.0}')
    try:
        os.chown(power.left_path(), 12345, -1)
    except OSError as error:
        pytest.skip(f"a file cannot be given away here: {error.strerror}")
    power.restore()
    assert limits(driver) == [700.0, 650.0]


def test_a_driver_that_refuses_is_one_sentence(driver: Path) -> None:
    (driver / "forbidden").touch()
    assert (
        "its power limit cannot be set to 700 W (Insufficient Permissions); run as root, or remove" in power.refused()
    )
    with pytest.raises(AutoscoutError, match="Insufficient Permissions"), power.capped(CAPPED):
        pass
    (driver / "nvidia-smi").unlink()
    if shutil.which("nvidia-smi") is None:
        assert power.refused() == "power_cap needs nvidia-smi, which shows no GPU here; remove it from [space]"


@pytest.mark.parametrize("name", ["llama-3.2-3b", "llama-3-8b-serve"])
def test_a_cap_is_a_knob_where_it_is_allowed_and_an_export_says_it(name: str) -> None:
    job = load_job(f"fixtures/jobs/{name}.toml")
    job = msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="h100", count=2)]), space=SpaceLimits())
    assert "needs root rights" in JobSpace.of_job(job).closed["power_cap"]
    space = JobSpace.of_job(msgspec.structs.replace(job, space=SpaceLimits(allow=["power_cap"])))
    assert space.domain("power_cap") == (100, 90, 80, 70, 60)
    one = space.reference
    other = Configuration({**one.knobs, "power_cap": 70})
    launches = [target_of(job).launch(space.job, c) for c in (one, other)]
    assert launches[0].arguments == launches[1].arguments
    assert "a power limit of 70 % of the default" in launches[1].missing[-1]
    assert not any("power limit" in text for text in launches[0].missing)


def test_joules_are_asked_for_on_gpus_only(tmp_path: Path) -> None:
    job = read_job("fixtures/jobs/tiny-gpt-cpu.toml")
    file = tmp_path / "job.toml"
    text = Path("fixtures/jobs/tiny-gpt-cpu.toml").read_text().replace('"step_time_s"', '"joules_per_token"')
    file.write_text(text)
    with pytest.raises(
        AutoscoutError,
        match="joules_per_token is measured by NVIDIA's driver, so it needs GPU nodes, but the cluster has CPU nodes",
    ):
        load_job(file)
    file.write_text(text.replace('device = "cpu"', 'device = "h100"'))
    assert load_job(file).objective == Objective(minimize="joules_per_token")
    assert job.objective.metric == "step_time_s"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for a driver's library")
def test_joules_come_from_the_drivers_counter(tmp_path: Path) -> None:
    source = tmp_path / "nvml.c"
    source.write_text(
        "#include <stdlib.h>\n#include <string.h>\n"
        "static unsigned long long taken[2] = {5000, 8000};\n"
        "int nvmlInit_v2(void) { return 0; }\n"
        "int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { if (i > 1) return 2; *h = &taken[i]; return 0; }\n"
        'int nvmlDeviceGetHandleByUUID(const char *u, void **h) { *h = &taken[1]; return strcmp(u, "GPU-b"); }\n'
        "int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *e) { *e = *(unsigned long long *)h; "
        "*(unsigned long long *)h += 250; return 0; }\n"
        "int nvmlDeviceGetIndex(void *h, unsigned *i) { *i = (unsigned long long *)h - taken; return 0; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(source)], check=True)
    code = (
        "import sys; sys.path.insert(0, 'autoscout/running/worker'); import energy\n"
        "print(energy.joules(['0', '1']), energy.joules(['GPU-b']), energy.joules(['7']), energy.joules([]))\n"
        "print(energy.index('GPU-b'), energy.index('GPU-c'))\n"
        # a rank that is shown the second GPU only, by its UUID: conditions of that GPU are its own
        "sys.path.insert(0, 'autoscout/targets/megatron/worker'); import torch, train, types\n"
        "torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid='b')\n"
        "print(train._index(torch.device('cuda', 0)))"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "GPU-b"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["13.0", "8.25", "None", "None", "1", "None", "1"]


def test_joules_of_all_ranks_are_shared_among_the_tokens(tmp_path: Path) -> None:
    about = {"configuration": {"knobs": {"mbs": 1}}, "name": "x", "context": "c", "environment": {}, "ranks": 2}
    flags = {"--global-batch-size": 8, "--seq-length": 100}
    experiment = {"about": {**about, "started": 0.0}, "arguments": flags}
    (tmp_path / "experiment.json").write_bytes(msgspec.json.encode(experiment))
    rank = {"iterations_s": [1.0, 1.0], "peak_memory_gib": 1.0, "time": 5.0, "losses": [1.0], "grad_norms": [1.0]}
    for i, joules in enumerate((900.0, 700.0)):
        told = {**rank, "cpu_s": 0.1, "energy_j": joules}
        (tmp_path / f"rank-{i}.json").write_bytes(msgspec.json.encode(told))
    found = measurement(tmp_path)
    assert found is not None
    assert found.metrics["joules_per_token"] == pytest.approx(1600 / 800)
