"""Arguments that the installed vLLM has, from 0.11 to the newest, by their own source's list; and what is exported."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from autoscout.deploy.export import checked, launch
from autoscout.machine.devices_here import here
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import shipped, target_of
from autoscout.targets.vllm import arguments as vllm
from autoscout.targets.vllm import installed
from autoscout.targets.vllm.kept import identity_of
from kb.records import AutoscoutError, Cluster, Configuration, Job, Node, Value
from kb.secrets import HIDDEN
from tests.tools import vllm_arguments

VERSIONS = vllm_arguments.answers()


def job_with(version: str, folder: Path, name: str = "llama-3-8b-serve") -> Job:
    """Whose interpreter has a package named vllm with the arguments of that version."""
    engine = folder / "packages" / "vllm" / "engine"
    engine.mkdir(parents=True)
    (engine.parent / "__init__.py").touch()
    (engine / "__init__.py").touch()
    fields = "\n".join(f"    {argument}: object = {value!r}" for argument, value in VERSIONS[version].items())
    (engine / "arg_utils.py").write_text(
        f"from dataclasses import dataclass\n@dataclass\nclass EngineArgs:\n{fields}\n"
    )
    info = folder / "packages" / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder / "packages"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    found = load_job(f"fixtures/jobs/{name}.toml")
    return msgspec.structs.replace(found, launch=msgspec.structs.replace(found.launch, python=str(python)))


@pytest.mark.parametrize("version", sorted(VERSIONS))
def test_no_argument_that_a_version_lacks_is_ever_given(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job = job_with(version, tmp_path)
    wide = msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="h100", count=4)] * 2))
    for one in (job, wide):
        space = JobSpace.of_job(one)
        for seed in range(25):
            given = vllm.engine_arguments(one, space.sample(np.random.default_rng(seed)))
            assert given.keys() <= VERSIONS[version].keys(), version


def test_the_versions_reach_from_011_to_the_newest() -> None:
    known = [tuple(int(part) for part in version.split(".")) for version in VERSIONS]
    assert min(known) == (0, 11, 0)
    assert max(known) >= (0, 33, 0)


def exported(environment: dict[str, str]) -> Any:
    job = load_job("fixtures/jobs/llama-3-8b-serve.toml")
    return launch(job, Configuration({"tp": 2, "max_num_seqs": 64}), "x", "", environment=environment)


@pytest.mark.parametrize(
    ("version", "image"),
    [
        ("0.11.0", "vllm/vllm-openai:v0.11.0"),
        ("0.33.0+cu129", "vllm/vllm-openai:v0.33.0"),
        ("0.10.1.1", "IMAGE"),
        ("0.33.1.dev4+gabc", "IMAGE"),
    ],
)
def test_the_image_is_that_of_the_version_that_was_measured(version: str, image: str) -> None:
    found = exported({"vllm": version})
    assert found.image == image
    more = " (for Kubernetes, its image instead of IMAGE)" if image == "IMAGE" else ""
    assert f"vLLM {version}, with which the configuration was measured{more}" in found.missing


def test_flags_of_what_was_measured_stay_whatever_is_installed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.11 has no flag for offloading the KV cache: an export of a run on 0.33 there must not drop it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lacking = [a for a in json.loads(vllm_arguments.RECORDED.read_text())["0.33.0"] if a not in VERSIONS["0.11.0"]]
    assert "kv_offloading_size" in lacking
    older = job_with("0.11.0", tmp_path)
    assert "kv_offload" not in JobSpace.of_job(older).knob
    measured = Configuration({"tp": 1, "kv_offload": 8})
    assert vllm.engine_arguments(older, measured)["kv_offloading_size"] == 8


LINE = (
    "apptainer exec --nv v.sif vllm serve M --max-num-seqs 64 --max-model-len 32768 --no-async-scheduling --api-key k "
    "--served-model-name a b "
    '--load-format dummy --hf-overrides \'{"x": {"y": 1}}\' --port 1'
)


def test_what_a_persons_line_says_beside_the_knobs_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line with --max-model-len 32768 was measured and exported for the longest request of the job's traffic."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job = job_with(max(VERSIONS), tmp_path)
    own = msgspec.structs.replace(job.launch, current=LINE, environment={"NCCL_DEBUG": "WARN"})
    theirs = msgspec.structs.replace(job, launch=own)
    space = JobSpace.of_job(theirs)
    given = vllm.engine_arguments(theirs, space.reference)
    assert (given["max_model_len"], given["load_format"], given["max_num_seqs"]) == (32768, "dummy", 64)
    assert given["hf_overrides"] == {"x": {"y": 1}}
    assert "served_model_name" not in given  # an experiment asks for its own
    found = launch(theirs, space.reference, "x", "")
    assert found.arguments["--api-key"] == HIDDEN
    assert found.arguments["--served-model-name"] == ["a", "b"]
    assert found.arguments["--port"] == "1"
    assert "--nv" not in found.arguments  # of the container
    assert found.environment["NCCL_DEBUG"] == "WARN"
    narrow = Configuration({**space.reference.knobs, "chunked_prefill": False, "max_num_batched_tokens": 16384})
    narrow.knobs.pop("long_prefill", None)
    assert [JobSpace.of_job(one).is_valid(narrow) for one in (job, theirs)] == [True, False]
    shorter = msgspec.structs.replace(
        theirs, launch=msgspec.structs.replace(own, current=LINE.replace("32768", "16384"))
    )
    assert identity_of(theirs)["flags"] != identity_of(shorter)["flags"]
    assert identity_of(theirs)["variables"] == identity_of(shorter)["variables"]
    assert identity_of(job) == {}


def test_without_vllm_here_knobs_are_exported_as_they_were_chosen(tmp_path):
    """The JSON of the line went into the export after them: a winner of 8 guesses, or of none, was exported with 3."""
    job = msgspec.structs.replace(
        job_with(max(VERSIONS), tmp_path), cluster=Cluster(nodes=[Node(device="h100", count=8)])
    )
    line = """vllm serve M -sc '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2}'"""
    bare = msgspec.structs.replace(job.launch, python=sys.executable, current=f"{line} -cc.custom_ops '[\"all\"]'")
    job = msgspec.structs.replace(job, launch=bare)
    usual = JobSpace.of_job(job).reference.knobs
    eight = target_of(job).launch(job, Configuration({**usual, "spec_tokens": 8})).arguments
    said = json.loads(str(eight["--speculative-config"]))
    assert (said["num_speculative_tokens"], said["prompt_lookup_min"]) == (8, 2)
    assert json.loads(str(eight["--compilation-config"]))["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    plain = Configuration({**{k: v for k, v in usual.items() if k != "spec_tokens"}, "spec": "none"})
    assert "--speculative-config" not in target_of(job).launch(job, plain).arguments


@pytest.mark.skipif(here()[1] > 0, reason="has GPUs")
def test_an_export_is_not_checked_where_its_gpus_are_not():
    """131 GiB of random weights were begun on a login node."""
    job = msgspec.structs.replace(
        load_job("fixtures/jobs/llama-3-8b-serve.toml"), cluster=Cluster(nodes=[Node(device="h100", count=4)])
    )
    reference = JobSpace.of_job(job).reference
    with pytest.raises(
        AutoscoutError, match="shows no GPU, but each node of the export needs 4; run --check on such a node"
    ):
        checked(job, launch(job, reference, "four", ""), "command")


@pytest.mark.parametrize(
    ("version", "rule", "holds"),
    [
        ("0.25.1", "VD2", True),
        ("0.30.0+cpu", "VD2", True),
        ("0.32.0", "VD2", False),
        ("0.24.0", "VS5", True),
        ("0.25.0", "VS5", False),
    ],
)
def test_a_rule_of_earlier_releases_holds_in_those_only(version: str, rule: str, holds: bool) -> None:
    """0.30 made PIECEWISE graphs of all others where guessing stops at a number of requests; 0.32 does not. Before 0.25
    the scheduler did not run ahead over the stages of a pipeline."""
    catalog = shipped("vllm")
    arguments: dict[str, Value | None] = {installed._argument(knob): None for knob in catalog.knob}
    found = installed.adapted(catalog, installed.Installed(version, arguments))
    assert (rule in {one.id for one in found.rule}) == holds
