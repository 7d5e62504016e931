"""A flag spelled with hyphens is the one with underscores."""

import shlex

from autoscout.line.launch_line import Line
from autoscout.machine.starting import job_file
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of

LINE = (
    "torchrun --nproc-per-node 4 run_clm.py --per-device-train-batch-size 2 --gradient-accumulation-steps 4 "
    "--output-dir out --push-to-hub --resume-from-checkpoint ck"
)


def test_a_line_with_hyphens_is_the_reference_and_leaves_the_hub_alone(tmp_path):
    """Its batch of two was not seen, and experiments went on from the user's checkpoint and pushed to their hub."""
    (tmp_path / "job.toml").write_text(job_file(shlex.split(LINE), tmp_path)[0])
    job = load_job(tmp_path / "job.toml")
    reference = JobSpace.of_job(job).reference
    assert reference.knobs["mbs"] == 2
    words = target_of(job).probe_line(job, reference, tmp_path / "x" / "experiment.json").split()
    assert not {"--push-to-hub", "ck", "out", "--per_device_train_batch_size"} & {*words}
    assert words.count("--per-device-train-batch-size") == 1


def test_a_flag_is_replaced_as_the_line_spells_it():
    assert Line(("--micro-batch=2",)).value("--micro_batch") == 2
    assert Line(
        (
            "--micro-batch=2",
            "-x",
        )
    ).with_("--micro_batch", 4).words == (
        "--micro-batch=4",
        "-x",
    )
    assert Line(
        (
            "--micro_batch",
            "2",
            "-x",
        )
    ).with_("--micro-batch=", 4).words == (
        "--micro_batch=4",
        "-x",
    )
    assert Line(
        (
            "--no-a",
            "x",
        )
    ).with_("--a/--no-a", True).words == (
        "--a",
        "x",
    )


def test_a_value_that_the_line_has_stays_as_it_is_spelled():
    """`--gradient_checkpointing`, `memory=0.80` and `x=True` were handed back as other words of the same."""
    for line, flag, value in (
        ("--gradient_checkpointing -x", "--gradient_checkpointing=", True),
        ("--gradient_checkpointing True", "--gradient_checkpointing=", True),
        ("--gradient_checkpointing False", "--gradient_checkpointing", False),
        ("memory=0.80", "memory=", 0.8),
        ("x=False", "x=", False),
        ("--no-a", "--a/--no-a", False),
    ):
        assert Line((*line.split(),)).with_(flag, value).words == (*line.split(),)
    assert Line(
        (
            "--a",
            "1",
        )
    ).with_("--a=", True).words == ("--a=true",)


def test_a_switch_that_the_line_gives_a_value_leaves_none_behind():
    """`--gradient_checkpointing True` became `--gradient_checkpointing=false True`, which no script takes."""
    assert Line(
        (
            "--a",
            "True",
            "-x",
        )
    ).with_("--a=", False).words == (
        "--a=false",
        "-x",
    )
    assert Line(
        (
            "--a",
            "true",
            "-x",
        )
    ).with_("--a", False).words == ("-x",)
    assert Line(
        (
            "--a",
            "False",
        )
    ).with_("--a", True).words == ("--a",)


def test_braces_of_a_line_are_its_own(tmp_path):
    """`check` found nothing wrong, and every experiment ended with an unknown placeholder."""
    line = ["torchrun", "train.py", "--batch_size", "4", "--set", "model={gelu}", "--to", "{folder}/x", "a={b: 1}"]
    (tmp_path / "job.toml").write_text(job_file(line, tmp_path)[0])
    job = load_job(tmp_path / "job.toml")
    words = target_of(job).launch(job, JobSpace.of_job(job).reference).program
    assert words == [*line[:-2], "autoscout-run/x", "a={b: 1}"]


def test_twice_as_many_braces_of_a_line_are_its_own(tmp_path):
    from autoscout.space.language.template import filled, of_a_line

    for text in ("{name}", "{{name}}", "{{{name}}}", "a{b}{{c}}d", '{"a": {b}}'):
        assert filled(of_a_line(text), {}, "a line") == text
