"""Which knob a table's column is, where several are set by one flag."""

from pathlib import Path

from autoscout.importing.mapping import uses
from autoscout.targets.jobs import JobSpace, load_job


def test_a_flag_is_the_knob_that_always_acts():
    """`tensor_parallel_size` became the degree of engines that read prompts alone: no imported row was valid."""
    space = JobSpace.of_job(load_job(Path("fixtures/jobs/llama-3-8b-serve.toml")))
    columns = ["tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs", "prefill_tp"]
    found = uses(columns, space, {}, [], [])
    assert [found[column].name for column in columns] == ["tp", "pp", "max_num_seqs", "prefill_tp"]
