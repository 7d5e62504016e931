"""From a configuration to what is started: placeholders, flags, environment, rendered files; and what is refused."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from autoscout.deploy.export import launch, written
from autoscout.line import nested
from autoscout.line.launch_line import Line, read
from autoscout.machine.starting import job_file
from autoscout.space.language.template import filled
from autoscout.targets.command.arguments import Place, started
from autoscout.targets.command.exported import exported, tried
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError, Configuration, Job

PLACE = Place(folder="/run", port="2345", iterations="6")


def words(job: Job, **knobs) -> list[str]:
    reference = JobSpace.of_job(job).reference
    return started(job, Configuration({**reference.knobs, **knobs}), PLACE).words


def test_a_knob_takes_the_place_of_its_flag_or_comes_last(job):
    assert words(job, mbs=4, workers=2)[2:] == ["trainer.py", "--mbs", "4", "--workers", "2"]
    assert words(job, fast=True)[-1] == "--fast"


@pytest.mark.parametrize(
    ("line", "flag", "value", "result"),
    [
        ("a --n 3 --m", "--n", 4, "a --n 4 --m"),
        ("a --n=3 --m", "--n", 4, "a --n=4 --m"),
        ("a --n -1", "--n", 2, "a --n 2"),
        ("a --m", "--n", 2, "a --m --n 2"),
        ("a --fast --m", "--fast", False, "a --m"),
        ("a --m", "--fast", True, "a --m --fast"),
        ("a --on --m", "--on/--no-on", False, "a --no-on --m"),
        ("a --no-on --m", "--on/--no-on", True, "a --on --m"),
        ("a x.y=3", "x.y=", 4, "a x.y=4"),
        ("a", "x.y=", True, "a x.y=true"),
        ("a --n 3", "--n", None, "a"),
    ],
)
def test_flags(line, flag, value, result):
    changed = Line((*line.split(),)).with_(flag, value)
    assert str(changed) == result
    if value is not None and value is not False:
        assert changed.value(flag) == value
    assert changed.with_(flag, value) == changed


def test_placeholders_are_expressions_and_json_is_left_alone():
    names = {"mbs": 2, "gpus": 4, "global_batch": 64, "fast": True}
    text = 'x --acc {global_batch // (mbs * gpus)} {fast} {{mbs}} ${mbs} {"a": {"b": 1}}'
    assert filled(text, names, "here") == 'x --acc 8 true {mbs} ${mbs} {"a": {"b": 1}}'
    assert filled("$mbs $HOME {mbs}", names, "here", dollars=True) == "2 $HOME 2"
    assert read("a --x {1 if mbs > 2 else 0} 'b c'", "here").words == ("a", "--x", "{1 if mbs > 2 else 0}", "b c")
    assert read("a | b", "here").for_shell
    assert read("a \\\n --b", "here").words == ("a", "--b")
    assert read("a 1\n  --b 2\n", "here").words == ("a", "1", "--b", "2")  # no shell would take --b for a command
    assert read("a\nb", "here").for_shell


def test_an_unknown_placeholder_names_the_nearest(write):
    path = write(("--mbs 2", "--mbs {mbz}"), ('sets = "--mbs"', 'sets = ""'))
    with pytest.raises(AutoscoutError, match="knob 'mbs' changes nothing"):
        load_job(path)
    job = load_job(write(("--mbs 2", "--mbs 2 {worker}")))
    with pytest.raises(AutoscoutError, match=r"the placeholder \{worker\} is unknown; did you mean 'workers'"):
        words(job)


def test_rendered_files_environment_and_paths(write, tmp_path):
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": $mbs, "zero": {"stage": 0}}')
    path = write(
        ("[launch.metrics]", 'environment = { DEPTH = "{workers}" }\nrender = [RENDER]\n[launch.metrics]'),
        ("RENDER", f'{{ from = "{tmp_path}/ds.json", to = "{{folder}}/ds.json" }}'),
        ('sets = "--workers"', 'sets = "json:zero.stage"'),
        ('sets = "--fast"', 'sets = "env:FAST"'),
    )
    job = load_job(path)
    run = started(job, Configuration({"mbs": 4, "workers": 2, "fast": True}), PLACE)
    assert json.loads(run.files["/run/ds.json"]) == {"train_micro_batch_size_per_gpu": 4, "zero": {"stage": 2}}
    assert run.environment == {"DEPTH": "2", "FAST": "true"}
    exported = launch(job, Configuration({"mbs": 4, "workers": 2, "fast": True}), "n", "e")
    assert exported.files.keys() == {"autoscout-run/ds.json"}


def test_yaml_and_toml_change_one_line():
    text = "# top\na:\n  b: 1  # one\n  c: 2\nd: 3\n"
    assert nested.put(text, "yaml", {"a.c": 5}, "f").splitlines()[3] == "  c: 5"
    assert nested.put(text, "yaml", {"a.e": True}, "f").splitlines()[4] == "  e: true"
    assert nested.put(text, "yaml", {"x.y": 1}, "f").splitlines()[-2:] == ["x:", "  y: 1"]
    text = "n = 1\n[a]\nb = 2\n[a.c]\nd = 3\n"
    for path, value in (("n", 7), ("a.b", 8), ("a.c.d", 9), ("a.e", "x"), ("z.y", True)):
        changed = tomllib.loads(nested.put(text, "toml", {path: value}, "f"))
        assert nested.at(changed, path) == value
    with pytest.raises(AutoscoutError, match="is not JSON"):
        nested.put("{", "json", {"a": 1}, "f")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ((r"per iteration \(ms\): ([\d.]+)", r"per iteration (ms: ([\d.]+)"), "is not a valid pattern"),
        ((r"per iteration \(ms\): ([\d.]+)", r"per iteration"), "has no group"),
        (('minimize = "step_time_s"', 'minimize = "step_tim_s"'), "did you mean 'step_time_s'"),
        (("--mbs 2", "--mbs 3"), "has --mbs 3, which is not among the values of knob 'mbs'"),
        (('command = "', 'script = "megatron"\ncommand = "'), "launch.script = 'megatron' is unknown"),
        (('sets = "--fast"', 'set = "--fast"'), r"space.knob\[2\].set is unknown; did you mean 'sets'"),
    ],
)
def test_mistakes_in_a_job_are_one_sentence(write, change, sentence):
    with pytest.raises(AutoscoutError, match=sentence):
        load_job(write(change))


def test_a_shell_command_wants_its_flags_in_place(write):
    path = write(("--mbs 2", "--mbs {mbs} --workers {workers} | tee log"), ("--fast", "--fast/--slow"))
    with pytest.raises(AutoscoutError, match="so the flag of fast cannot be added"):
        load_job(path)


def test_two_configurations_export_differently_and_every_format_parses(job):
    space = JobSpace.of_job(job)
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    launches = [launch(job, c, space.name(c), "measured") for c in space.configurations()]
    for form in ("command", "json", "yaml", "slurm", "k8s"):
        texts = [written(job, found, form) for found in launches]
        assert len(set(texts)) == space.count
    assert json.loads(written(job, launches[0], "json"))["program"] == launches[0].program
    assert yaml.safe_load(written(job, launches[0], "yaml"))["command"] == launches[0].program
    assert yaml.safe_load(written(job, launches[0], "k8s"))["kind"] == "Job"


ECHO = """#!{python}
import json, os, sys
with open(os.environ["ECHO_TO"], "w") as file:
    json.dump([sys.argv[1:], os.environ.get("SAYS"), os.getcwd(), open("run/a.json").read()], file)
"""


@pytest.mark.parametrize("form", ["command", "slurm", "k8s", "yaml", "json"])
def test_what_is_exported_is_read_back_as_it_was_meant(job, tmp_path, form):
    """By the shell, by YAML and by JSON themselves, with all that has to be quoted."""
    words = ["--text", 'it\'s "so" $HOME `x` a\\b', "--empty", "", "--n", "2"]
    content = '{"a": "it\'s %s $b"}\n'
    found = msgspec.structs.replace(
        launch(job, JobSpace.of_job(job).reference, "n", "measured"),
        program=["trainer", *words],
        environment={"SAYS": "a 'b' $c"},
        files={"run/a.json": content},
        folder=str(tmp_path),
    )
    text = written(job, found, form)
    if form in ("yaml", "json"):
        yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
        read = json.loads(text) if form == "json" else yaml.safe_load(text)
        assert read["program" if form == "json" else "command"] == found.program
        assert (read["environment"], read["files"], read["folder"]) == (
            found.environment,
            found.files,
            found.folder,
        )
        return
    if form == "k8s":
        yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
        (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
        command = [*container["command"], *container["args"]]
    else:
        command = ["bash", "-c", text]
    (tmp_path / "trainer").write_text(ECHO.format(python=sys.executable))
    (tmp_path / "trainer").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "ECHO_TO": str(tmp_path / "said")}
    subprocess.run(command, env=environment, check=True)
    assert json.loads((tmp_path / "said").read_text()) == [words, "a 'b' $c", str(tmp_path), content]


def test_older_jobs_keep_their_form(job):
    """What a job does not use is not written: journals of other targets look as before."""
    from kb.records import LaunchSettings, SpaceLimits

    assert msgspec.json.encode(LaunchSettings()) == msgspec.json.encode(SpaceLimits()) == b"{}"
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job


def test_the_jobs_of_the_page_are_jobs_of_less_than_twenty_lines(tmp_path):
    page = "".join(Path("docs", name).read_text() for name in ("your-own-script.md", "lab/scripts-measured.md"))
    jobs = [text for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if text.startswith("name =")]
    assert len(jobs) >= 3
    for text in jobs:
        (tmp_path / "job.toml").write_text(text)
        job = load_job(tmp_path / "job.toml")
        assert JobSpace.of_job(job).reference
        assert len(text.splitlines()) < 20, job.name


SAVES = """
import pathlib, sys
said = dict(zip(sys.argv, sys.argv[1:]))
if "SAVE":
    pathlib.Path(said["--save"]).mkdir(parents=True)
    pathlib.Path(said["--save"], "iter_0000100").write_text("weights")
for i in range(int(said["--train-iters"])):
    print(f"iteration {i} | elapsed time per iteration (ms): 1.5 | lm loss: 6.1")
"""


@pytest.mark.parametrize("saves", ["yes", ""])
def test_a_long_check_wants_a_checkpoint(write, tmp_path, saves):
    (tmp_path / "pretrain_gpt.py").write_text(SAVES.replace("SAVE", saves, 1))
    text = (
        'name = "soaked"\ntarget = "command"\nobjective = { minimize = "step_time_s" }\n'
        "traffic = { global_batch = 16 }\n[launch]\n"
        f'script = "megatron-lm"\npath = "{tmp_path}"\ncommand = "{sys.executable} -S pretrain_gpt.py"\n'
    )
    space = JobSpace.load(write(text=text))
    found = exported(space.job, space.reference)
    if saves:
        assert tried(space.job, found, "command", 200) > 0
    else:
        with pytest.raises(AutoscoutError, match=r"ran \d+ iterations here, but wrote no checkpoint"):
            tried(space.job, found, "command", 200)


def test_what_the_line_of_a_known_program_leaves_out_stays_out_at_its_default(tmp_path):
    """verl's Megatron settings have no fsdp_config: the present launch was told one, which Hydra refuses."""
    line = "python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer data.train_batch_size=64"
    path = tmp_path / "job.toml"
    path.write_text(job_file(shlex.split(line), tmp_path)[0])
    job = load_job(path)
    reference = JobSpace.of_job(job).reference
    assert exported(job, reference).program == shlex.split(line)
    other = exported(job, Configuration({**reference.knobs, "seqs": 512})).program
    assert other == [*shlex.split(line), "actor_rollout_ref.rollout.max_num_seqs=512"]
