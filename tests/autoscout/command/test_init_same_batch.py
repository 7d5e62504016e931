"""`init` of a script that nobody knows: a step trains on as much whatever is tried, or the smallest batch wins."""

import shlex

import pytest
from job_files import changed

from autoscout.machine.starting import job_file
from autoscout.targets.command.arguments import Place, started
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Configuration


@pytest.fixture
def begun(tmp_path):
    """The job of a launch line, and what its person is told."""

    def begun(line: str):
        text, notes = job_file(shlex.split(f"torchrun --nproc-per-node 2 train.py {line}"), tmp_path)
        (tmp_path / "job.toml").write_text(text)
        return load_job(tmp_path / "job.toml"), notes

    return begun


def values_of(job, *names):
    return sorted({tuple(c.knobs[name] for name in names) for c in JobSpace.of_job(job).configurations()})


def test_a_micro_batch_and_its_accumulation_keep_todays_product(begun):
    job, _ = begun("--per_device_train_batch_size 2 --gradient_accumulation_steps 4")
    pairs = values_of(job, "per_device_train_batch_size", "gradient_accumulation_steps")
    assert pairs == [(1, 8), (2, 4), (4, 2)]
    assert target_of(job).notes_on_job(job) == [
        "no loss is read from the script's output, so a configuration that computes something else goes unnoticed"
    ]


@pytest.mark.parametrize(
    "flag",
    [
        "--batch_size_config.num_nodes", "--batch_size_config.gpus_per_node", "--rampup-batch-size",
        "--analyzing-num-workers", "--preprocessing_num_workers", "--val_batch_size",
    ],
)  # fmt: skip
def test_what_says_something_else_is_no_knob(tmp_path, flag):
    """Half the nodes were tried, and a schedule of another batch."""
    line = shlex.split(f"torchrun --nproc-per-node 2 train.py --global-batch-size 64 --micro-batch-size 4 {flag} 2")
    assert flag not in job_file(line, tmp_path)[0].partition("[space]")[2]


@pytest.mark.parametrize("flag", ["--bs", "--mbs", "--micro_bs", "--train-bs"])
def test_a_batch_by_its_short_name_is_one(begun, flag):
    """It was not seen, and its accumulation alone was, and fixed: nothing was left to try."""
    job, _ = begun(f"{flag} 2 --grad-accum 4 --jobs 8")
    assert values_of(job, flag.lstrip("-").replace("-", "_"), "grad_accum") == [(1, 8), (2, 4), (4, 2)]


@pytest.mark.parametrize("line", ["--batch-size 8", "--train_batch_size 32 --micro_batch 4", "--accumulate 4"])
def test_a_batch_that_nothing_compensates_for_stays_as_it_is(begun, line):
    job, notes = begun(f"{line} --num-workers 4")
    space = JobSpace.of_job(job)
    assert {c.knobs["num_workers"] for c in space.configurations()} == {2, 4, 8}
    assert space.count == 3, "nothing else moves"
    assert any(note.startswith("space.fix: ") and "samples" in note for note in notes)


def test_beside_a_global_batch_a_micro_batch_is_free(begun):
    job, notes = begun("--global-batch-size 64 --micro-batch-size 4")
    assert values_of(job, "micro_batch_size") == [(2,), (4,), (8,)]
    assert not any(note.startswith("space.fix: ") for note in notes)
    job, _ = begun("--global-batch-size 64 --micro-batch-size 4 --grad_accum 8")
    assert values_of(job, "micro_batch_size", "grad_accum") == [(2, 16), (4, 8), (8, 4)]
    job, notes = begun("--global-batch-size 64 --grad_accum 8 --num-workers 2")
    assert values_of(job, "grad_accum") == [(8,)]
    assert any(note.startswith("space.fix: ") for note in notes)


SETTINGS = """
model_name_or_path: tiny-llama
per_device_train_batch_size: 2  # of one rank
gradient_accumulation_steps: 8
disable_gradient_checkpointing: true
"""


def test_the_settings_of_a_yaml_file_are_todays_launch(tmp_path, monkeypatch):
    (tmp_path / "sft.yaml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(job_file(["llamafactory-cli", "train", "sft.yaml"], tmp_path)[0])
    job = load_job(tmp_path / "job.toml")
    assert job.traffic.global_batch == 2 * 8 * job.devices
    space = JobSpace.of_job(job)
    assert (space.reference.knobs["mbs"], space.reference.knobs["no_checkpointing"]) == (2, True)
    place = Place(folder="here", port="1", iterations="12")
    words = started(job, Configuration({**space.reference.knobs, "mbs": 4}), place).words
    assert words[:3] == ["llamafactory-cli", "train", "sft.yaml"]
    assert {"per_device_train_batch_size=4", "gradient_accumulation_steps=4", "max_steps=12"} <= {*words}
    assert "output_dir=here/out" in words, "an experiment writes where it is, not over the user's adapters"


def test_a_yaml_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(AutoscoutError, match=r"none\.yaml: cannot be read"):
        job_file(["llamafactory-cli", "train", "none.yaml"], tmp_path)


JOB = """
name = "mine"
target = "command"
[cluster]
nodes = [{ device = "cpu", count = 2 }]
[objective]
minimize = "step_time_s"
[launch]
command = "torchrun --nproc-per-node {gpus} train.py --bs 4 --workers 2 --accumulate 8"
metrics = { step_time_s = 'step took ([\\d.]+)', loss = 'loss ([\\d.]+)' }
[space]
knob = [{ name = "mbs", values = [2, 4, 8], sets = "--bs" }, { name = "workers", values = [2, 4], sets = "--workers" }]
"""


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ([], True),
        ([('minimize = "step_time_s"', 'maximize = "samples_per_s"'), ("step_time_s =", "samples_per_s =")], False),
        ([("--accumulate 8", "--accumulate {32 // mbs}")], False),
        ([("[space]", "[space]\nfix = { mbs = 4 }")], False),
        ([("[space]", '[space]\nrule = [{ holds = "mbs < 8" }]')], False),
        (
            [('name = "mbs"', 'name = "size"'), ('sets = "--bs"', 'sets = "--batch-size"'), ("--bs", "--batch-size")],
            True,
        ),
        ([("--workers 2 --accumulate 8", "--workers 2 --global-batch 64")], False),
        ([("--workers 2 --accumulate 8", "--workers 2 --global-batch 64"), ("mbs", "accumulation")], True),
    ],
)
def test_a_knob_that_looks_like_a_batch_is_asked_about(tmp_path, changes, warned):
    job = changed(tmp_path, JOB, *changes)
    notes = [note for note in target_of(job).notes_on_job(job) if "samples" in note]
    assert bool(notes) == warned
    assert all(note.startswith(("knob 'mbs'", "knob 'size'", "knob 'accumulation'")) for note in notes)
