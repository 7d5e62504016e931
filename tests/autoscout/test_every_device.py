"""Every device record answers: the questions of a job do not depend on which GPU it names."""

import math

import pytest

from autoscout.job.device_names import is_cpu, kinds
from autoscout.targets.jobs import JobSpace
from autoscout.tuning.predict import predict

JOB = """
name = "small"
task = "pretrain"
target = "megatron"
[model]
preset = "qwen2.5-7b"
[traffic]
seq_len = 2048
global_batch = 16
[cluster]
nodes = [{{ device = "{kind}", count = 8 }}]
[objective]
minimize = "step_time_s"
"""


@pytest.mark.parametrize("kind", [kind for kind in kinds() if not is_cpu(kind)])
def test_a_layout_over_slow_links_is_predicted_on_every_device(kind, tmp_path):
    """Where a pair of recorded GPUs is ten times as fast as eight, the simulator doubts itself by a factor of several:
    it was taken for useless, and `predict` claimed that nothing could predict the job."""
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(kind=kind))
    found = predict(JobSpace.load(path), {"tp": 4}, None)
    assert 0 < found.low < found.value < found.high < math.inf
