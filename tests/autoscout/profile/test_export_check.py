"""`export --check` of a Megatron configuration: our worker trains what was exported, for two iterations."""

import msgspec
import pytest
from profile_bench import configuration, tiny_job

from autoscout.deploy.export import checked, launch
from kb.records import AutoscoutError

pytestmark = pytest.mark.engine


@pytest.mark.thorough
def test_an_exported_layout_is_started_and_one_that_fails_says_why():
    job = tiny_job()
    found = launch(job, configuration(tp=2, dp=2), "tp2_dp2", "measured")
    assert checked(job, found, "command") > 0
    broken = launch(job, configuration(tp=3), "tp3", "not the winner")
    with pytest.raises(AutoscoutError, match=r"does not work here: .*3") as failed:
        checked(job, broken, "command")
    assert failed.value.exit_code == 1
    with pytest.raises(AutoscoutError, match="own training loop writes no checkpoint"):
        checked(job, found, "command", soak=True)


def test_other_flags_than_its_configuration_has_are_not_started():
    job = tiny_job()
    found = launch(job, configuration(dp=2), "dp2", "measured")
    other = msgspec.structs.replace(found, arguments={**found.arguments, "--micro-batch-size": 4})
    with pytest.raises(AutoscoutError, match="the exported value of --micro-batch-size differs") as refused:
        checked(job, other, "command")
    assert refused.value.exit_code == 2
