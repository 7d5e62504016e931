"""Which knob a table's column is, where several are set by one flag."""

from pathlib import Path

import pytest

from autoscout.deploy.recommendation import best_of_job
from autoscout.importing.bring_in import bring_in
from autoscout.importing.mapping import uses
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError


def test_a_flag_is_the_knob_that_always_acts():
    """`tensor_parallel_size` became the degree of engines that read prompts alone: no imported row was valid."""
    space = JobSpace.of_job(load_job(Path("fixtures/jobs/llama-3-8b-serve.toml")))
    columns = ["tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs", "prefill_tp"]
    found = uses(columns, space, {}, [], [])
    assert [found[column].name for column in columns] == ["tp", "pp", "max_num_seqs", "prefill_tp"]


def test_what_is_known_by_imports_alone_is_not_nothing(tmp_path: Path):
    """`best` said that nothing is known, where `FROM results` had the rows."""
    job, kb, table = (
        load_job(Path("fixtures/jobs/llama-3-8b-serve.toml")),
        tmp_path / "kb.duckdb",
        tmp_path / "rows.csv",
    )
    table.write_text("tensor_parallel_size,output_tokens_per_s\n1,900\n2,1400\n")
    bring_in(kb, table, job, (), (), ())
    with pytest.raises(AutoscoutError, match="2 rows of llama-3-8b-serve are known, and none answers here yet"):
        best_of_job(kb, job)
