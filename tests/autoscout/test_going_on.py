"""What is said of going on from today's launch: with its checkpoint, and with the nearest of what is as good."""

import pytest

from autoscout.deploy.export import launch, written
from autoscout.deploy.recommendation import nearness, of_checkpoint
from autoscout.targets.jobs import JobSpace, load_job
from kb.journal import Confirmed
from kb.records import Configuration, Measurement

MEGATRON = """
name = "gpt"
target = "command"
model = { layers = 4, hidden = 64, heads = 4, vocab = 512 }
traffic = { seq_len = 64, global_batch = 16 }
cluster = { nodes = [{ device = "cpu", count = 4 }] }
objective = { minimize = "step_time_s" }
[launch]
script = "megatron-lm"
current = "torchrun --nproc-per-node 4 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 16 FLAGS"
"""


@pytest.fixture
def gpt(tmp_path):
    def made(flags: str = ""):
        path = tmp_path / "job.toml"
        path.write_text(MEGATRON.replace("FLAGS", flags))
        job = load_job(path)
        return job, JobSpace.of_job(job)

    return made


@pytest.mark.parametrize(
    ("flags", "changed", "said"),
    [
        ("", {"mbs": 4}, "loads unchanged"),
        ("", {"recompute": True, "overlap_grad": True}, "loads unchanged"),
        ("", {"tp": 2, "sp": False}, "is resharded when it is loaded, and so is its optimizer state"),
        ("", {"distopt": True}, "its optimizer state changes its format"),
        ("", {"distopt": True, "pp": 2}, "its optimizer state changes its format"),
        ("--use-distributed-optimizer", {"mbs": 4}, "loads unchanged"),
        ("--use-distributed-optimizer", {"pp": 2}, "only if it was saved with --dist-ckpt-optim-fully-reshardable"),
        ("--use-distributed-optimizer", {"overlap_grad": True}, "if the gradient buckets differ"),
    ],
)
def test_whether_a_running_training_can_go_on_as_the_winner(gpt, flags, changed, said):
    """The words of Megatron-LM's own checks, core_v0.16.1 (megatron-lm.toml names the places)."""
    job, space = gpt(flags)
    new = Configuration({**space.reference.knobs, **changed})
    assert space.is_valid(new)
    assert said in of_checkpoint(job, space.reference, new)
    assert of_checkpoint(job, new, new) == ""


def test_our_own_worker_knows_the_same_and_the_export_says_it():
    job = load_job("fixtures/jobs/smallest-cpu.toml")
    space = JobSpace.of_job(job)
    now, new = (next(c for c in space.configurations() if c.knobs["tp"] == tp) for tp in (1, 2))
    told = of_checkpoint(job, now, new)
    assert "resharded" in told
    found = launch(job, new, "n", "e", told)
    for form in ("command", "slurm", "yaml"):
        assert f"# {told}" in written(job, found, form)


def test_a_script_of_which_nothing_is_known_says_nothing():
    job = load_job("fixtures/own/ddp.toml")
    space = JobSpace.of_job(job)
    other = next(c for c in space.configurations() if c != space.reference)
    assert of_checkpoint(job, space.reference, other) == ""


@pytest.mark.parametrize(
    ("rival", "behind", "said"),
    [
        ({"a": 2, "b": 2, "c": 2}, 0.998, "it changes 1 knobs, rival changes 3"),
        ({"a": 2, "b": 2, "c": 2}, 1.01, ""),  # it is the cheapest anyway
        ({"a": 1, "b": 2, "c": 1}, 0.998, ""),  # no nearer
    ],
)
def test_of_equals_the_nearest_is_preferred_and_that_is_said(rival, behind, said):
    default, winner = Configuration({"a": 1, "b": 1, "c": 1}), Configuration({"a": 2, "b": 1, "c": 1})
    confirmed = Confirmed(
        winner=winner,
        name="winner",
        value=1.0,
        default_name="default",
        default_value=1.2,
        gain=1.2,
        low=1.1,
        high=1.3,
        pairs=2,
        rival_name="rival",
        behind=behind,
        behind_low=0.9,
        behind_high=1.1,
    )
    rows = [Measurement(configuration=Configuration(rival), name="rival", context="", status="ok")]
    assert (said in nearness(confirmed, rows, default)) if said else nearness(confirmed, rows, default) == ""
