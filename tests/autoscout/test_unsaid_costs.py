"""The table of what unsaid things cost: rows measured exactly as they are predicted err by what is removed."""

import csv
from pathlib import Path

from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.training_tables import columns_of
from tests.tools.unsaid_costs import lines

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
    (line,) = lines(file)
    source, metric, number, said, unsaid, known, dearest, cover = (cell.strip() for cell in line.strip("|").split("|"))
    assert (source, metric, number, said) == (
        "exact: 32 layers of 4096 on NVIDIA A100 80 GB SXM4",
        "step_time_s",
        "8",
        "0.0 %",
    )
    assert float(unsaid.strip(" %")) > float(known.strip(" %"))
    assert dearest.startswith("its framework +")
    assert cover == "100 %, 100 %, 100 %"
