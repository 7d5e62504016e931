"""Knobs and targets that a person declares in TOML; knobs and defaults of the vLLM that is installed."""

import sys
from pathlib import Path

import msgspec
import pytest

from autoscout.space.explain import explain
from autoscout.targets.jobs import JobSpace, load_job, notes
from autoscout.targets.megatron.arguments import flags
from autoscout.targets.target import shipped, target_of
from autoscout.targets.vllm import installed
from autoscout.targets.vllm.arguments import engine_arguments
from autoscout.targets.vllm.installed import Installed, adapted
from kb.records import AutoscoutError, Configuration

OWN = Path("fixtures/spaces/own-knob.toml")


def test_a_knob_of_ones_own_acts_where_it_says_and_reaches_the_profiler():
    job = load_job(OWN)
    space = JobSpace.of_job(job)
    knobs = {"pp": 2, "vpp": 2, "overlap_p2p": True, "warmup_flush": True, "mbs": 1}
    found = explain(space, knobs, space.reference).configuration
    assert found is not None
    assert flags(job, found)["--overlap-p2p-comm-warmup-flush"] is True
    without = Configuration({**found.knobs, "warmup_flush": False})
    assert "--overlap-p2p-comm-warmup-flush" not in flags(job, without)
    assert all(("warmup_flush" in c.knobs) == bool(c.knobs.get("overlap_p2p")) for c in space.configurations())


def test_a_rule_of_ones_own_explains_itself():
    space = JobSpace.load(OWN)
    given = {"pp": 2, "vpp": 2, "overlap_p2p": True, "warmup_flush": True, "mbs": 4}
    explanation = explain(space, given, space.reference)
    assert [v.rule for v in explanation.violations] == ["mine"]
    assert explanation.violations[0].sentence.startswith("2 micro batches fill 2 stages just once")


def test_a_declared_knob_with_other_values(tmp_path):
    mbs = KNOB.replace('"fast"', '"mbs"', 1).replace("sparse", "dense").replace("[false, true]", "[1, 3]")
    text = "".join(line for line in mbs.splitlines(keepends=True) if not line.startswith(("default", "off", "sets")))
    (tmp_path / "mine.toml").write_text('extends = "megatron"\n' + text + 'sets = "micro_batch_size"\nreplace = true\n')
    path = tmp_path / "job.toml"
    path.write_text(OWN.read_text().replace("warmup-flush.toml", "mine.toml").replace("= 8", "= 6"))
    job = load_job(path)
    space = JobSpace.of_job(job)
    assert {c.knobs["mbs"] for c in space.configurations()} == {1, 3}
    assert flags(job, space.reference)["--micro-batch-size"] == 3


def test_a_whole_target_of_ones_own():
    space = JobSpace.load("fixtures/spaces/own-target.toml")
    assert space.knob.keys() == {"compiled", "workers", "prefetch", "batch"}
    assert {int(c.knobs["batch"]) for c in space.configurations()} == {1, 2, 4, 8}
    assert space.reference.knobs["workers"] == 2


KNOB = """[[knob]]
name = "fast"
kind = "sparse"
layer = "kernels"
values = [false, true]
default = false
off = false
meaning = "goes faster"
sets = "TransformerConfig.fast"
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (KNOB, 'set either extends = "megatron", to add knobs to that target'),
        ('extends = "vllm"\n' + KNOB, "extends = 'vllm', but the job's target is 'megatron'"),
        ('target = "mine"\n' + KNOB, 'so the job needs target = "command"'),
        (
            'extends = "megatron"\n' + KNOB.replace("layer", "layr"),
            "knob[0].layr is unknown; did you mean 'layer'",
        ),
        ('extends = "megatron"\n' + KNOB.replace("[false, true]", "[]"), "knob 'fast': values is empty"),
        (
            'extends = "megatron"\n' + KNOB.replace("[false, true]", "[false, 1]"),
            "must be all switches (true, false), all numbers or all names",
        ),
        ('extends = "megatron"\n' + KNOB.replace("default = false", 'default = "no"'), "must have the same type"),
        ('extends = "megatron"\n' + KNOB.replace('"fast"', '"min"', 1), "knob 'min': expressions use this name"),
        ('extends = "megatron"\n' + KNOB.replace('"fast"', '"tp"', 1), "set replace = true to override it"),
        (
            'extends = "megatron"\n' + KNOB.replace('"fast"', '"layers"', 1),
            "the job already uses this name",
        ),
        ('extends = "megatron"\n' + KNOB + "replace = true", "knob 'fast' has replace = true, but there is no knob"),
        ('extends = "megatron"\n' + KNOB + 'when = "tpp > 1"', "'tpp' is unknown; did you mean 'tp'"),
        ('extends = "megatron"\n' + KNOB + 'when = "tp.real"', "knob 'fast': when: 'tp.real' uses Attribute"),
        ('extends = "megatron"\n' + KNOB.replace("TransformerConfig.fast", "fast"), "accepts your own knobs only as"),
        ('extends = "megatron"\n' + KNOB + KNOB, "knob 'fast' is declared twice"),
        ('extends = "megatron"\nknob = 3', "knob: expected `array`, got `int`"),
        ("extends =", "not valid TOML"),
    ],
)
def test_every_mistake_names_the_file_and_the_key(tmp_path, text, sentence):
    (tmp_path / "mine.toml").write_text(text)
    job = tmp_path / "job.toml"
    job.write_text(OWN.read_text().replace("warmup-flush.toml", "mine.toml"))
    with pytest.raises(AutoscoutError) as refused:
        JobSpace.load(job)
    assert sentence in str(refused.value)
    assert str(tmp_path / "mine.toml") in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_catalog_that_is_not_there(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(OWN.read_text())
    with pytest.raises(AutoscoutError, match=r"warmup-flush.toml: cannot read this catalog \(No such file"):
        JobSpace.load(job)


def test_without_a_knob_only_what_runs_today_can_be_measured(tmp_path):
    """`init` wrote such a job of a script in which it knew nothing that may be changed, and every verb refused it."""
    job = tmp_path / "job.toml"
    text = Path("fixtures/spaces/own-target.toml").read_text().replace('catalog = ["my-trainer.toml"]', "")
    job.write_text(text)
    with pytest.raises(AutoscoutError, match="has no knobs of its own"):
        load_job(job)
    job.write_text(f'{text}\n[launch]\ncurrent = "python train.py"\n')
    loaded = load_job(job)
    assert JobSpace.of_job(loaded).count == 1
    assert [note for note in target_of(loaded).notes_on_job(loaded) if note.startswith("the job has no knobs")]


# ---- the installed version --------------------------------------------------------------------------------


def test_knobs_that_the_installed_version_lacks_disappear_and_defaults_follow_it():
    catalog = shipped("vllm")
    arguments = {knob.sets.split(".")[0]: None for knob in catalog.knob}
    del arguments["long_prefill_token_threshold"]
    here = adapted(catalog, Installed("0.99", {**arguments, "gpu_memory_utilization": 0.9}))
    assert here.version == "0.99"
    assert {k.name for k in catalog.knob} - {k.name for k in here.knob} == {"long_prefill"}
    assert next(k for k in here.knob if k.name == "gpu_memory_utilization").default == 0.9
    assert here.derived["long_prefill"] == "0"  # rules go on reading it


def interpreter_with_vllm(folder: Path, fields: str) -> Path:
    """An interpreter with a package named vllm, version 0.99, whose engine has these arguments."""
    engine = folder / "packages" / "vllm" / "engine"
    engine.mkdir(parents=True)
    (engine.parent / "__init__.py").touch()
    (engine / "__init__.py").touch()
    lines = "\n".join(f"    {field}" for field in fields.split("; "))
    (engine / "arg_utils.py").write_text(
        f"print('chatter')\nfrom dataclasses import dataclass\n@dataclass\nclass EngineArgs:\n{lines}\n"
    )
    info = folder / "packages" / "vllm-0.99.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.99\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder / "packages"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_the_interpreter_of_the_job_is_asked_and_the_answer_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fields = "max_num_seqs: int = None; max_num_batched_tokens: int = None; speculative_config: str = 'x'"
    python = interpreter_with_vllm(tmp_path, fields)
    job = load_job("fixtures/jobs/tiny-llama-serve-cpu.toml")
    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, python=str(python)))
    job = msgspec.structs.replace(job, space=msgspec.structs.replace(job.space, fix={}))
    asked = installed.version_of(job)
    assert asked is not None
    assert asked.arguments == {"max_num_seqs": None, "max_num_batched_tokens": None, "speculative_config": "x"}
    assert JobSpace.of_job(job).knob.keys() == {"max_num_seqs", "max_num_batched_tokens", "spec", "spec_tokens"}
    assert "eager is left out: vllm 0.99 has no enforce_eager" in notes(job)
    assert [p.suffix for p in (tmp_path / "cache" / "autoscout" / "installed").iterdir()] == [".json"]


def test_a_version_that_lacks_what_the_catalog_cannot_do_without(tmp_path):
    with pytest.raises(AutoscoutError, match=r"vllm 0\.1 has no max_num_seqs, which AutoScout's catalog needs"):
        adapted(
            shipped("vllm"),
            Installed("0.1", {"max_num_batched_tokens": None}),
        )


def test_without_vllm_the_catalogs_version_counts_and_a_note_says_so():
    job = load_job("fixtures/jobs/llama-3-8b-serve.toml")
    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, python="/nonexistent/python"))
    assert installed.version_of(job) is None
    lacks = "/nonexistent/python has no vllm that reports its version and arguments"
    assert f"{lacks}: names and defaults are those of vllm 0.32.0" in notes(job)
    assert JobSpace.of_job(job).knob.keys() >= {k.name for k in shipped("vllm").knob if not k.asks}


def test_the_arguments_of_an_engine():
    job = load_job("fixtures/jobs/tiny-llama-serve-cpu.toml")
    space = JobSpace.of_job(job)
    plain = engine_arguments(job, space.reference)
    assert plain["kv_cache_memory_bytes"] == 2048 * 2**20
    assert plain["max_model_len"] == 128
    assert "speculative_config" not in plain
    guessing = explain(space, {"spec": "ngram", "spec_tokens": 4}, space.reference).configuration
    assert guessing is not None
    speculative = engine_arguments(job, guessing)["speculative_config"]
    assert speculative == {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
