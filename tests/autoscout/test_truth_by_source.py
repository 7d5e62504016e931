"""The table of what unsaid things cost: rows measured exactly as they are predicted err by what is removed."""

import csv
from pathlib import Path
from xml.etree import ElementTree as ET

from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.training_tables import columns_of
from tests.tools.reliability import picture, wrong
from tests.tools.truth_by_source import CHANCES, chances, lines, of_tables

SVG = "{http://www.w3.org/2000/svg}"
ROW = {
    "source": "somebody", "framework": "LLM Foundry", "gpu": "A100", "layers": 32, "hidden": 4096, "heads": 32,
    "seq_len": 2048, "vocab": 50432, "n_gpus": 8, "global_batch": 64, "zero_stage": 3, "precision": "bf16",
}  # fmt: skip


def test_an_exact_source_errs_by_what_is_removed_and_three_rows_bring_most_of_it_back(tmp_path: Path) -> None:
    rows = [{**ROW, "micro_batch": mbs, "recompute": ar} for mbs in (1, 2, 4, 8) for ar in ("none", "full")]
    seconds = Training().predict(columns_of(rows)).value.tolist()
    file = tmp_path / "exact.csv"
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, [*rows[0], "iteration_time_s"])
        writer.writeheader()
        writer.writerows({**row, "iteration_time_s": each} for row, each in zip(rows, seconds, strict=True))
    _, _, line = lines(of_tables([file], things=True))
    source, metric, number, said, unsaid, known, cover, dearest = (cell.strip() for cell in line.strip("|").split("|"))
    assert (source, metric, number, said) == ("exact: somebody A100", "step_time_s", "8", "0.0 %")
    assert float(unsaid.strip(" %")) > float(known.strip(" %"))
    assert dearest.startswith("its framework +")
    assert cover == "100 %, 100 %, 100 %"


def test_runs_that_died_are_counted_by_the_chance_that_they_were_given(tmp_path: Path) -> None:
    small, large = ROW | {"micro_batch": 1, "recompute": "full"}, ROW | {"micro_batch": 8, "n_gpus": 1, "zero_stage": 0}
    file = tmp_path / "fits.csv"
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, [*ROW, "micro_batch", "recompute", "status"])
        writer.writeheader()
        writer.writerows([small | {"status": "ok"}, large | {"status": "oom"}])
    _, _, said, unsaid = chances(of_tables([file]))
    assert said.startswith("| fits: somebody A100, said | 1, 0% |")
    assert said.endswith("| 1, 100% |")
    assert unsaid.startswith("| fits: somebody A100, unsaid | ")


def test_exact_rows_are_inside_of_every_interval_and_rows_ten_times_slower_in_none(tmp_path: Path) -> None:
    rows = [
        {**ROW, "micro_batch": mbs, "recompute": ar} for mbs in (1, 2, 4, 8) for ar in ("none", "selective", "full")
    ]
    seconds = Training().predict(columns_of(rows)).value.tolist()
    files = [tmp_path / f"{name}.csv" for name in ("exact", "slow")]
    for file, times in zip(files, (1, 10), strict=True):
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, [*rows[0], "iteration_time_s"])
            writer.writeheader()
            writer.writerows(row | {"iteration_time_s": times * s} for row, s in zip(rows, seconds, strict=True))
    found = of_tables(files)
    panels = [
        of for of in ET.fromstring(picture(found)).iter(f"{SVG}g") if of.findtext(f"{SVG}text") in ("exact", "slow")
    ]
    heights = [{point.get("cy") for point in of.iter(f"{SVG}circle") if point.get("class") == "said"} for of in panels]
    assert heights == [{"0.0"}, {"130.0"}]
    _, _, *wrongs = wrong(found)
    assert wrongs == ["| slow: somebody A100 | step_time_s | 12 | 90.0, 9 % | -90 % | 0 % | error, too narrow |  |"]


def test_the_chance_of_a_bin_is_drawn_at_its_mean_with_its_runs() -> None:
    counts = {f"{name} {i}": 0.0 for name in ("runs", "died", "chance") for i in range(len(CHANCES))}
    half = counts | {"runs 2": 10.0, "died 2": 5.0, "chance 2": 3.0}
    root = ET.fromstring(picture({"t: x": {"died, said": {"a": half}, "died, unsaid": {"a": counts}}}))
    assert [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter(f"{SVG}circle")] == [(39.0, 65.0)]
    assert [text.text for text in root.iter(f"{SVG}text")][-2:] == ["10 runs, n at each point", "10"]
