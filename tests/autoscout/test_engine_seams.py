"""What our workers call of Megatron-core is there in every recorded release, and in the installed one."""

import importlib.metadata
import importlib.util
import inspect
import sys
from pathlib import Path

import msgspec
import pytest

from autoscout.running.worker import engine_signatures as signatures
from autoscout.targets import seams
from autoscout.targets.jobs import load_job
from autoscout.targets.megatron import engine_seams
from autoscout.targets.vllm import engine_calls
from kb.records import AutoscoutError, Job

USED = engine_seams.used()
RECORDED = engine_seams.recorded()


def named(text: str, tmp_path: Path) -> list[seams.Seam]:
    """Seams of a worker with this code."""
    (tmp_path / "loop.py").write_text(text)
    return seams.seams(tmp_path, "engine")


def said(text: str, signature: str | None, tmp_path: Path) -> list[str]:
    return seams.unfit(named(text, tmp_path), {"engine.core.cut": signature})


@pytest.mark.parametrize("release", RECORDED.releases)
def test_every_recorded_release_takes_every_call(release: str) -> None:
    found = RECORDED.of(release)
    assert found is not None
    assert {seam.name for seam in USED} == found.keys(), "tests/tools/record_seams.py records them anew"
    assert seams.unfit(USED, found) == []


@pytest.mark.parametrize("release", engine_calls.recorded().releases)
def test_every_recorded_release_of_vllm_takes_every_call(release: str) -> None:
    found = engine_calls.recorded().of(release)
    assert found is not None
    assert {seam.name for seam in engine_calls.used()} == found.keys(), "tests/tools/record_seams.py records them anew"
    assert seams.unfit(engine_calls.used(), found) == []


def test_a_build_for_cpus_has_the_calls_of_its_release() -> None:
    found = engine_calls.fit_of([sys.executable], engine_calls.release_of("0.33.0+cpu"))
    assert (found.engine, found.known, found.unfit) == ("vllm 0.33.0", True, [])


def test_the_call_that_stopped_training_on_new_releases_is_found() -> None:
    name = "megatron.core.utils.get_batch_on_this_cp_rank"
    before = seams.Seam(name, 1, (), False, True, "batches.py, line 31")
    refused = [v for v in RECORDED.releases if seams.unfit([before], RECORDED.of(v) or {})]
    assert refused == [v for v in RECORDED.releases if v >= "0.18"]
    (told,) = seams.unfit([before], RECORDED.of("0.19.2") or {})
    assert "missing a required argument: 'is_hybrid_cp' (batches.py, line 31)" in told


@pytest.mark.parametrize(
    ("call", "signature", "refused"),
    [
        ("cut(1)", "batch", ""),
        ("cut()", "batch", "missing a required argument: 'batch'"),
        ("cut(1, 2)", "batch", "too many positional arguments"),
        ("cut(1, group=2)", "batch, group=…", ""),
        ("cut(1, group=2)", "batch", "unexpected keyword argument 'group'"),
        ("cut(1, 2)", "batch, *, group", "too many positional arguments"),
        ("cut(batch=1)", "batch, /", "positional"),
        ("cut(batch=1)", "**more", ""),
        ("cut(1, 2, 3)", "*all", ""),
        ("cut(**given)", "batch, group", ""),
        ("cut(deep=1, **given)", "batch, group", "unexpected keyword argument 'deep'"),
        ("cut(1)", None, "is missing"),
        ("cut(1)", "", ""),
    ],
)
def test_a_call_is_bound_as_python_binds_it(call: str, signature: str | None, refused: str, tmp_path: Path) -> None:
    found = " ".join(said(f"from engine.core import cut\n{call}\n", signature, tmp_path))
    assert refused in found
    assert bool(found) == bool(refused)


def test_what_a_worker_does_without_may_be_missing(tmp_path: Path) -> None:
    needless = "try:\n    from engine.core import cut\nexcept ImportError:\n    pass\n"
    assert said(needless, None, tmp_path) == []
    patched = "from engine import core\nif not hasattr(core, 'cut'):\n    core.cut = None\n"
    assert said(patched, None, tmp_path) == []


def test_a_patch_of_a_name_that_is_gone_is_a_seam_too(tmp_path: Path) -> None:
    """Nothing would fail: the engine would go on with its own function under another name."""
    assert said("from engine import core\ncore.cut = None\n", None, tmp_path) == [
        "engine.core.cut is missing (loop.py, line 2)"
    ]


def example(a: int, /, b: str, c: float = 1.0, *rest: int, deep: bool, wide: bool = False, **more: int) -> None: ...
def sparse(a: int, /) -> None: ...
def apart(a: int, *, b: int = 2) -> None: ...


def test_signatures_are_written_so_that_they_can_be_read() -> None:
    assert signatures.written(inspect.signature(example)) == "a, /, b, c=…, *rest, deep, wide=…, **more"
    assert signatures.written(inspect.signature(sparse)) == "a, /"
    assert signatures.written(inspect.signature(apart)) == "a, *, b=…"


def test_a_record_holds_where_a_signature_changed() -> None:
    one = seams.record({"1.0": {"f": "a"}, "1.1": {"f": "a"}, "2.0": {"f": "a, b"}, "2.1": {"f": None}}, "by hand")
    assert one.names == {"f": {"1.0": "a", "2.0": "a, b", "2.1": None}}
    assert [one.of(v) for v in ("1.1", "2.0", "2.1", "1.5")] == [{"f": "a"}, {"f": "a, b"}, {"f": None}, None]


def tiny() -> Job:
    job = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, python=sys.executable))


def test_a_recorded_release_is_not_asked_again() -> None:
    found = engine_seams.fit(tiny(), "0.17.1")
    assert found is not None
    assert found.known
    assert found.verdict.startswith("AutoScout's record of megatron-core 0.17.1 has all ")


def test_what_an_import_needs_and_no_metadata_says_is_named_before_anything_is_spent(tmp_path: Path) -> None:
    """On a build of torch for CPUs, every experiment on 0.19.2 died of it."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    job = msgspec.structs.replace(tiny(), launch=msgspec.structs.replace(tiny().launch, python=str(python)))
    found = engine_seams.fit(job, "0.19.2")
    assert found is not None
    assert found.verdict.endswith(
        "megatron-core 0.19.2: its import needs triton, which is not installed in that interpreter"
    )
    (tmp_path / "triton.py").touch()
    found = engine_seams.fit(job, "0.19.2")
    assert found is not None
    assert found.unfit == []


@pytest.mark.engine
@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra")
def test_a_release_that_nobody_recorded_is_asked_and_has_to_train() -> None:
    """Under another name, the installed one is such a release. From 0.18 on triton would have to be there, too."""
    said = engine_seams.ready(tiny(), "0.17.99")
    assert said.startswith("AutoScout has no record of megatron-core 0.17.99; the engine's code has")
    assert said.endswith(
        f"{len({seam.name for seam in USED})} names that AutoScout calls or sets, and two layers trained on it"
    )
    assert importlib.metadata.version("megatron-core") in RECORDED.releases


def test_an_engine_that_cannot_be_imported_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def load(device):\n    import triton_of_nobody\n")
    with pytest.raises(AutoscoutError, match=r"No module named 'triton_of_nobody'"):
        seams.ask([sys.executable], tmp_path / "train.py", "cpu", [])
