"""The catalog against what releases of Megatron-core said of themselves, and the audit of the installed one."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from autoscout.targets import auditing
from autoscout.targets.audited import Audit, Unset
from autoscout.targets.jobs import load_job
from autoscout.targets.megatron import engine_audit, newer, releases
from autoscout.targets.target import shipped
from kb.records import AutoscoutError

RECORDED = engine_audit.recorded()
PARSED = [v for v in RECORDED.releases if "--bf16" in {n for n, t in (RECORDED.of(v) or {}).items() if t is not None}]
CATALOG = shipped("megatron")


def first(name: str) -> str:
    return next((v for v, text in RECORDED.names.get(name, {}).items() if text is not None), "")


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_releases_with_a_parser_are_those_whose_wheel_has_one() -> None:
    assert [v for v in RECORDED.releases if numbers(v) >= [0, 17]] == PARSED


@pytest.mark.parametrize("knob", [k for k in CATALOG.knob if k.since], ids=lambda k: k.name)
def test_a_knob_is_offered_no_earlier_than_its_release_has_it(knob) -> None:
    for field in re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", knob.sets.replace("--", "").replace("-", "_")):
        names = [n for n in RECORDED.names if n.rpartition(".")[2] == field]
        since = min((numbers(v) for n in names if (v := first(n))), default=None)
        if since and since > numbers(RECORDED.releases[0]):
            assert numbers(knob.since) >= since[:2], field


def test_every_flag_of_the_catalog_is_one_of_the_releases_that_have_its_knob() -> None:
    for knob in newer.of_catalog().values():
        for flag in knob.sets.split(", "):
            for version in PARSED:
                if releases.reached(version, knob.since or "0"):
                    today = CATALOG.renamed.get(flag)
                    name = today.now if today and releases.reached(version, today.since) else flag
                    assert (RECORDED.of(version) or {}).get(name) is not None, (knob.name, name, version)


def test_a_default_that_moved_is_that_of_each_release() -> None:
    """Switches, numbers and names; 0 is what a release leaves to the package that it calls."""
    for knob in newer.of_catalog().values():
        flag = knob.sets.split(", ")[-1]
        for version in PARSED:
            takes = (RECORDED.of(version) or {}).get(flag)
            if not takes or not releases.reached(version, knob.since or "0"):
                continue
            said = msgspec.json.decode(takes.partition(" of ")[0])
            ours = releases.by_default(knob, version).default
            assert ours == said or (said in (None, []) and ours == knob.off), (knob.name, version)


def test_a_flag_has_the_name_that_every_later_release_knows() -> None:
    for old, today in CATALOG.renamed.items():
        for version in PARSED:
            known = RECORDED.of(version) or {}
            name = today.now if numbers(version) >= numbers(today.since) else old
            assert known[name] is not None, (version, name)


def unset(flag: str, takes: str) -> Unset:
    return Unset(flag, takes, "0.19.0", "how much of it stays", 1)


def audited(*flags: Unset) -> Audit:
    return Audit(
        engine="megatron-core 0.19.2",
        recorded=True,
        parses=True,
        jobs=[],
        drawn=0,
        refused={},
        changed={},
        forbidden=0,
        accepted={},
        unsaid=0,
        unset=list(flags),
        moved={},
        unfit=[],
    )


@pytest.mark.parametrize(
    ("flag", "takes", "values", "asks"),
    [
        ("--stash", "false", [False, True], [True]),
        ("--sms", "20", [10, 20, 40], [10, 40]),
        ("--share", "1.0", [0.5, 1.0, 2.0], [0.5, 2.0]),
        ("--mode", '"a" of a | b', ["a", "b"], ["b"]),
        ("--mode", "null of a | b", ["a", "b"], ["a", "b"]),
    ],
)
def test_a_drafted_row_is_off_until_a_job_allows_it(flag: str, takes: str, values: list, asks: list) -> None:
    (row,) = tomllib.loads(auditing.draft(audited(unset(flag, takes)), [flag]))["knob"]
    assert (row["values"], row["asks"], row["sets"], row["since"]) == (values, asks, flag, "0.19.0")
    msgspec.convert({**row}, type=type(CATALOG.knob[0]))


def test_only_a_flag_that_no_knob_sets_is_drafted() -> None:
    with pytest.raises(AutoscoutError, match="--bf16 needs no draft, because it has a knob already"):
        auditing.draft(audited(), ["--bf16"])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('usage: pretrain_gpt.py [-h]')", "usage: pretrain_gpt.py"),
        ("raise RuntimeError('Found no NVIDIA driver on your system')", "Found no NVIDIA driver"),
        ("import os; os._exit(0)", "truncated"),
        ("print('{}')", "required field"),
    ],
)
def test_an_engine_that_ends_before_it_answers_is_one_sentence(code: str, said: str, tmp_path: Path) -> None:
    """Its parser exits, it imports only with a GPU, or it answers something else."""
    (tmp_path / "asks.py").write_text(code)
    with pytest.raises(AutoscoutError, match=rf"the engine of this interpreter cannot be queried \(.*{said}") as failed:
        auditing.ask([sys.executable], tmp_path / "asks.py", {}, "engine")
    assert failed.value.exit_code == 2


def test_a_rule_that_a_model_is_needed_to_check_is_not_held_against_validation() -> None:
    """Nine of 104 neighbours of tiny-gpt counted: chunks of an even layout are only looked at by what makes layers."""
    said = {rule.id: engine_audit.checked_by(rule, "0.19.2") for rule in CATALOG.rule}
    assert said["P3"] == "P3, checked by megatron-core when it builds the model"
    assert any(text.endswith("checked by megatron-core") for text in said.values())


def test_an_engine_that_says_no_version_is_not_adapted_to(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho unknown\n")
    python.chmod(0o755)
    job = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, python=str(python)))
    assert releases.version_of(job) == ""
    own = tmp_path / "own"
    own.write_text("#!/bin/sh\necho 0.16.1\n")  # the catalog's
    own.chmod(0o755)
    of_catalog = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, python=str(own)))
    assert releases.adapted(CATALOG, job) == releases.adapted(CATALOG, of_catalog)


@pytest.mark.engine
@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra")
def test_our_release_takes_what_we_would_launch_and_says_so_to_ci() -> None:
    command = [sys.executable, "-m", "tui.cli", "targets", "--audit", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    found = msgspec.json.decode(done.stdout, type=Audit)
    assert found.sound, found
    assert done.returncode == 0
    assert found.drawn >= 200
    assert found.forbidden >= 20
