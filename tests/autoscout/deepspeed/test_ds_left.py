"""Folders that DeepSpeed's own autotuner left, without what was printed, whole and damaged.

0.19.8 on two CPU ranks; 0.14.5 with an engine that only pretended: its code wrote all but metrics.json and the logs.
"""

import json
import shutil
from pathlib import Path

import pytest
import verbs
from ds_configs import CONFIG

from kb import store

LEFT = Path(__file__).parent / "left_by_0_19_8"
OLD = Path(__file__).parent / "left_by_0_14_5"
TWO_STAGES = {**CONFIG, "zero_optimization": {"stage": [0, 1]}}


@pytest.fixture
def left(tmp_path) -> Path:
    return Path(shutil.copytree(LEFT, tmp_path / "autotuning_results"))


def imported(place, left: Path, tmp_path, config=TWO_STAGES):
    kb = tmp_path / "kb.duckdb"
    done = verbs.run("import", left, "--job", place.job_file(config), "--kb", kb)
    rows = [m for _, m in store.measurements(kb)] if kb.exists() else []
    return done, {(m.configuration.knobs["stage"], m.configuration.knobs["mbs"]): m for m in rows}


def test_all_of_it(place, left, tmp_path):
    done, rows = imported(place, left, tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows.keys() == {(0, 4), (0, 8), (1, 8)}
    best = max(rows, key=lambda at: rows[at].metrics["samples_per_s"])
    summary = (left / "summary.txt").read_text()  # their verdict
    assert best == (0, 8)
    assert f"{rows[best].metrics['samples_per_s']:.3f}" in summary
    said = done.stdout + done.stderr
    assert "trains 14 samples per step, but the job trains 16" in said  # it changed the batch
    assert "trains 4 samples per step, but the job trains 16" in said


def changed(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_with_auto_and_half_written_files(place, left, tmp_path):
    auto = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    changed(left / "z0_gas1_tmbspg2" / "ds_config.json", **auto)
    for name in ("z0_gas2_tmbspg4/metrics.json", "z1_gas1_tmbspg8/ds_config.json"):
        (left / name).write_text((left / name).read_text()[:60])
    done, rows = imported(place, left, tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows.keys() == {(0, 8), (1, 8)}  # a ds_config that was cut off is in exp.json, too
    said = done.stdout + done.stderr
    assert 'the batch sizes are "auto"' in said
    assert "z0_gas2_tmbspg4" in said
    assert "metrics.json cannot be read" in said
    assert "Traceback" not in said


def test_nothing_but_its_model_info_run(place, left, tmp_path):
    for folder in left.glob("z*"):
        shutil.rmtree(folder)
    done, rows = imported(place, left, tmp_path)
    assert (done.returncode, rows) == (2, {})
    assert "Traceback" not in done.stderr


def test_all_of_an_older_version(place, tmp_path):
    every_stage = {**CONFIG, "zero_optimization": {"stage": [0, 1, 2, 3]}}
    left = Path(shutil.copytree(OLD, tmp_path / "autotuning_results"))
    done, rows = imported(place, left, tmp_path, every_stage)
    assert done.returncode == 0, done.stderr
    ran = {at: m.metrics["samples_per_s"] for at, m in rows.items() if m.status == "ok"}
    assert ran.keys() == {(0, 2), (0, 4), (0, 8), (1, 8), (2, 8)}
    assert {at for at, m in rows.items() if m.status == "oom"} == {(3, 4), (3, 8)}
    summary = (left / "summary.txt").read_text()
    best = max(ran, key=lambda at: ran[at])
    assert f"{ran[best]:.3f}" in summary
    assert f"z{best[0]}_gas1_tmbspg{best[1]}" in summary
