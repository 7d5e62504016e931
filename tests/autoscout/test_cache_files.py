"""A tier of the KV cache in files below the host's memory: when it shortens waits, when it does not, and what it leaves
as it was."""

from pathlib import Path

import numpy as np
import pytest
from record_files import own_records
from test_prefix_cache import LLAMA, LONG, SHAPE

from autoscout.simulate.encode import of_configurations, of_job
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.targets.jobs import JobSpace
from autoscout.tuning.predict import unpriced
from kb.records import (
    Cluster,
    Configuration,
    Job,
    LaunchSettings,
    Node,
    Objective,
    Sessions,
    SpaceLimits,
    Traffic,
)

RECORD = 'name = "{0}"\nsource = "made up"\nlike = "a100"\nstorage_gb_s = {1}\n'


def said(disk: bool | None, gib: float = 2.0, **more: object) -> tuple[float, float]:
    """Mean TTFT in ms and its log error, with or without files; None: without the column."""
    files = {} if disk is None else {"kv_disk": np.array([disk])}
    columns = {
        **SHAPE, "gpu": "a100", "gpu_memory_utilization": 0.3, "traffic": LONG, "kv_offload": np.array([gib]),
    }  # fmt: skip
    found = ServingSimulator("ttft_mean_ms").predict({**columns, **files, **more})
    return float(found.value[0]), float(found.error[0])


def ttft(disk: bool | None, gib: float = 2.0, **more: object) -> float:
    return said(disk, gib, **more)[0]


def test_files_find_again_what_neither_device_nor_host_has() -> None:
    assert ttft(True) < 0.6 * ttft(False)
    assert ttft(True) == pytest.approx(ttft(False, gib=128.0), rel=0.1)  # as if all had fitted into the host's memory


def test_slow_storage_makes_prompts_wait_longer_than_reading_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = {name: RECORD.format(name, gb_s) for name, gb_s in {"brisk": 50, "slow": 0.05}.items()}
    with own_records(tmp_path, monkeypatch, **records):
        assert ttft(True, gpu="brisk") < 0.6 * ttft(False, gpu="brisk")
        assert ttft(True, gpu="slow") > 1.2 * ttft(False, gpu="slow")
        assert ttft(False, gpu="slow") == ttft(False, gpu="brisk")  # nothing else depends on the storage
        # what the host's memory has is not read from files
        assert ttft(True, gpu="slow", gib=128.0) == pytest.approx(ttft(False, gpu="slow", gib=128.0), rel=0.1)


def test_without_files_nothing_changes() -> None:
    assert said(False) == said(None)


def test_all_engines_find_what_one_of_them_wrote() -> None:
    """Requests go to the engines in turn, so that a turn may follow one that the other engine answered."""
    arriving = Traffic(rate=1.0, requests=240, input_len=1500, output_len=60, sessions=Sessions(turns=6, think_s=1.0))
    two = {"traffic": arriving, "dp": 2.0, "router": "round_robin"}
    assert ttft(True, gib=128.0, **two) < 0.8 * ttft(False, gib=128.0, **two)


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_a_prompt_that_no_file_has_waits_a_step_for_the_lookup(rate: float) -> None:
    alone = Traffic(
        rate=rate, requests=100, input_len=4000, output_len=100, shared_prefix=64, sessions=Sessions(turns=1)
    )
    without, looked = (ttft(disk, 64.0, traffic=alone, gpu_memory_utilization=0.9) for disk in (False, True))
    assert without < looked < 1.2 * without


def test_the_interval_is_wider_with_files() -> None:
    assert said(True)[1] > said(False)[1]


def test_the_knob_of_a_job_decides() -> None:
    job = Job(
        name="files",
        task="serve",
        target="vllm",
        model=LLAMA,
        traffic=LONG,
        cluster=Cluster(nodes=[Node(device="a100", count=1)]),
        objective=Objective(minimize="ttft_mean_ms"),
        launch=LaunchSettings(kv_folder="/cache"),
        space=SpaceLimits(allow=["kv_disk"]),
    )
    space = JobSpace.of_job(job)
    tight = {**space.reference.knobs, "kv_offload": 16.0, "gpu_memory_utilization": 0.3}
    both = [Configuration({**tight, "kv_disk": disk}) for disk in (False, True)]
    without, files = ServingSimulator("ttft_mean_ms").predict({**of_job(job), **of_configurations(space, both)}).value
    assert files < 0.9 * without
    assert unpriced(space, both) == []
