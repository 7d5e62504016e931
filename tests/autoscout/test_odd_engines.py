"""Engines that are not what their version says, or are older than anything that AutoScout fits."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from autoscout.machine import doctor
from autoscout.targets import seams
from autoscout.targets.jobs import load_job
from autoscout.targets.megatron import engine_audit, engine_seams, environment, releases
from autoscout.targets.vllm import config_audit, engine_calls, installed
from kb.records import AutoscoutError, Job

VCS = '{"url": "https://example.org/fork.git", "vcs_info": {"vcs": "git"}}'


def interpreter(root: Path, *folders: str) -> str:
    """A Python whose only packages are in folders, in this order."""
    path = ":".join(str(root / folder) for folder in folders)
    made = root / "python"
    made.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} -S "$@"\n')
    made.chmod(0o755)
    return str(made)


def package(folder: Path, version: str, direct_url: str = "", name: str = "megatron-core") -> None:
    """An installed engine without code."""
    info = folder / f"{name.replace('-', '_')}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name.replace('-', '/')}/__init__.py,,\n")
    if direct_url:
        (info / "direct_url.json").write_text(direct_url)


def code(folder: Path, module: str = "megatron/core") -> None:
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").touch()


def with_python(python: str) -> Job:
    job = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, python=python))


@pytest.mark.parametrize(
    ("direct_url", "code_in", "path", "released"),
    [
        ("", ["site"], ["site"], True),
        (VCS, ["site"], ["site"], False),  # a fork, or a commit, with the release's version
        ("", ["checkout"], ["site", "checkout"], False),  # editable
        ("", ["site", "checkout"], ["checkout", "site"], False),  # two, and the one without a version is imported
        ("", ["site", "checkout"], ["site", "checkout"], True),
        ("", [], ["site"], False),  # a version whose code is gone
    ],
)
def test_code_that_is_not_the_release_s_does_not_pass_by_its_version(
    direct_url: str, code_in: list[str], path: list[str], released: bool, tmp_path: Path
) -> None:
    package(tmp_path / "site", "0.19.2", direct_url)
    for folder in code_in:
        code(tmp_path / folder)
    python = [interpreter(tmp_path, *path)]
    assert seams.installed(python, "megatron-core", "megatron.core", ["triton"]) == (released, ["triton"])


def test_of_two_engines_in_one_interpreter_each_is_known_by_itself(tmp_path: Path) -> None:
    """A fork of one changes nothing for the other."""
    package(tmp_path / "site", "0.19.2")
    code(tmp_path / "site")
    package(tmp_path / "site", "0.33.0", VCS, name="vllm")
    code(tmp_path / "site", "vllm")
    python = interpreter(tmp_path, "site")
    assert seams.installed([python], "megatron-core", "megatron.core")[0]
    assert not seams.installed([python], "vllm", "vllm")[0]
    assert releases.version_of(with_python(python)) == "0.19.2"


@pytest.mark.parametrize(("version", "direct_url"), [("0.17.0rc1", ""), ("0.17.1", VCS)])
def test_a_candidate_and_a_fork_are_asked(version: str, direct_url: str, tmp_path: Path) -> None:
    """By their record nobody had asked them; neither has torch here, and so none answers."""
    package(tmp_path / "site", version, direct_url)
    code(tmp_path / "site")
    with pytest.raises(AutoscoutError, match=r"this interpreter cannot be imported as in an experiment \(.*torch"):
        engine_seams.fit(with_python(interpreter(tmp_path, "site")), version)


@pytest.mark.parametrize("verb", [environment.describe, engine_audit.audit])
def test_code_without_a_version_is_one_sentence(verb: Callable[[Job], object], tmp_path: Path) -> None:
    """As from a folder on PYTHONPATH, of which no package index knows."""
    package(tmp_path / "site", "2.13.0", name="torch")
    code(tmp_path / "site")
    with pytest.raises(AutoscoutError, match="has no megatron-core whose version can be read") as refused:
        verb(with_python(interpreter(tmp_path, "site")))
    assert refused.value.exit_code == 2


def vllm(site: Path, parser: str) -> None:
    """A vLLM whose classes are imported without a device, and whose server's parser is made by this code."""
    package(site, "0.33.0", name="vllm")
    arguments = "class EngineArgs:\n    max_num_seqs: int = 7"
    files = {
        "engine/arg_utils.py": f"import dataclasses\n@dataclasses.dataclass\n{arguments}\n",
        "entrypoints/openai/cli_args.py": f"def make_arg_parser(parser):\n    {parser}\n",
        "utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
    }
    for name, text in files.items():
        code(site, f"vllm/{Path(name).parent}")
        (site / "vllm" / name).write_text(text)
    (site / "vllm" / "__init__.py").touch()


@pytest.mark.parametrize("parser", ["import sys; sys.exit(2)", "raise RuntimeError('no device')"])
def test_a_vllm_whose_parser_exits_still_tells_its_arguments(parser: str, tmp_path: Path) -> None:
    vllm(tmp_path / "site", parser)
    found = installed.version_of(with_python(interpreter(tmp_path, "site")))
    assert found == installed.Installed("0.33.0", {"max_num_seqs": 7})


def test_a_vllm_that_imports_only_with_a_gpu_is_one_sentence(tmp_path: Path) -> None:
    vllm(tmp_path / "site", "return parser")
    (tmp_path / "site/vllm/__init__.py").write_text("import ctypes; ctypes.CDLL('libcuda_of_nobody.so.1')")
    with pytest.raises(AutoscoutError, match=r"this interpreter cannot be queried \(OSError: libcuda_of") as no:
        config_audit.audit(with_python(interpreter(tmp_path, "site")))
    assert no.value.exit_code == 2


def test_a_vllm_that_is_too_old_is_one_sentence_and_is_not_imported(tmp_path: Path) -> None:
    found = engine_calls.fit_of([interpreter(tmp_path)], "0.10.2")
    oldest = engine_calls.recorded().releases[0]
    assert found.verdict == (
        f"some names that AutoScout calls or sets do not fit vllm 0.10.2: this release is older than {oldest}, "
        "the oldest release that AutoScout supports"
    )


def test_doctor_counts_what_an_audit_of_the_release_found(tmp_path: Path) -> None:
    (engine, audit) = doctor.engine(engine_seams.fit(with_python(sys.executable), "0.16.1"))
    assert engine.ok
    assert audit.found == (
        "the engine refuses 0 of 1,000 valid configurations and changes 0 of their fields; the engine accepts 0 of "
        "611 invalid configurations"
    )
    unknown = engine_calls.fit_of([interpreter(tmp_path)], "0.10.2")
    assert [found.subject for found in doctor.engine(unknown)] == ["engine"]
