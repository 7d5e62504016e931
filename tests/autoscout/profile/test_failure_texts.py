"""What texts of real failures are taken for; and when a session gives a broken machine up."""

import json
from pathlib import Path

import pytest
from failure_texts import FOURTH, FURTHER, TABLE, THIRD, Text

from autoscout.running import symptoms
from autoscout.running.outcome import RunOutcome, classify


def classified(folder: Path, text: Text) -> tuple[str, str]:
    if text.kind:
        return exception(folder, text.kind, text.text, text.phase)
    (folder / "rank-0.log").write_text("torch 2.13\n")
    (folder / "rank-3.log").write_text(f"step 1\n{text.text}\nframe #9: start_thread + 0x1 (0x2 in libc.so.6)\n")
    return classify(RunOutcome(codes={3: -text.signal if text.signal else 1}), folder, 60.0, 0)


def exception(folder: Path, kind: str, message: str, phase: str, rank: int = 1, **more: object) -> tuple[str, str]:
    error = {"type": kind, "message": message, "traceback": "", "in_megatron": True, "phase": phase, "steps": 0}
    (folder / f"rank-{rank}.error.json").write_text(json.dumps({**error, "time": 1.0, **more}))
    return classify(RunOutcome(codes={rank: 1}), folder, 60.0, 0)


@pytest.mark.parametrize("text", [*TABLE, *FURTHER, *THIRD, *FOURTH], ids=lambda text: text.text[:40])
def test_texts_of_real_failures(tmp_path: Path, text: Text) -> None:
    status, evidence = classified(tmp_path, text)
    assert status == text.should_be, evidence
    assert text.names in evidence
    if status == "infrastructure":
        assert evidence.startswith("the machine, not the configuration: ")
        assert symptoms.named(evidence)


FULL = (
    "CUDA out of memory. Tried to allocate {tried} GiB. GPU 0 has a total capacity of 79.15 GiB of which 512.00 MiB is "
    "free. Process 4711 has {theirs} GiB memory in use. Including non-PyTorch memory, this process has {ours} GiB "
    "memory in use. Of the allocated memory 17.00 GiB is allocated by PyTorch."
)


def test_an_engine_that_exits_refuses_and_was_not_ended(tmp_path: Path) -> None:
    """argparse exits with 2, others with their text; a handler of signals with a code of its own."""
    assert exception(tmp_path, "SystemExit", "2", "config")[0] == "invalid"
    status, evidence = exception(tmp_path, "SystemExit", "usage: pretrain_gpt.py [-h]", "config")
    assert (status, "usage: pretrain_gpt.py" in evidence) == ("invalid", True)
    assert exception(tmp_path, "SystemExit", "143", "train", steps=3)[0] == "killed"
    assert exception(tmp_path, "KeyboardInterrupt", "", "config")[0] == "killed"


def test_memory_that_others_hold_is_no_fact_about_a_configuration(tmp_path: Path) -> None:
    said = FULL.format(tried="2.00", theirs="60.10", ours="18.55")
    status, evidence = exception(tmp_path, "OutOfMemoryError", said, "train")
    assert status == "infrastructure"
    assert (
        "another process holds the GPU's memory (other processes use 60.1 GiB, and without them the run would fit"
        in evidence
    )
    said = FULL.format(tried="30.00", theirs="20.00", ours="58.65")  # too much for an empty device too
    assert exception(tmp_path, "OutOfMemoryError", said, "train")[0] == "oom"
    said = FULL.format(tried="2.00", theirs="0.40", ours="78.25")
    assert exception(tmp_path, "OutOfMemoryError", said, "train")[0] == "oom"


@pytest.mark.parametrize(
    ("free", "reserved", "status"),
    [(19.0, 18.4, "infrastructure"), (78.6, 77.0, "oom"), (40.0, 78.5, "oom"), (40.0, 2.0, "oom")],
    ids=["others", "empty", "too much anyway", "the run would fit"],
)
def test_without_numbers_in_the_text_what_was_free_before_the_start_tells(
    tmp_path: Path, free: float, reserved: float, status: str
) -> None:
    said = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    memory = {"free_gib": free, "total_gib": 79.15, "reserved_gib": reserved}
    assert exception(tmp_path, "RuntimeError", said, "train", memory=memory)[0] == status


def test_vllm_asks_for_more_than_an_empty_device_has(tmp_path: Path) -> None:
    said = "Free memory on device (78.6/79.15 GiB) on startup is less than desired GPU memory utilization (0.995, 78.7"
    assert exception(tmp_path, "ValueError", said, "build")[0] == "oom"


def test_the_first_cause_is_named_not_what_it_led_to(tmp_path: Path) -> None:
    """Rank 1's device broke; the others waited for it, and their watchdog ended them."""
    waits = TABLE[16].text
    for rank in (0, 2, 3):
        (tmp_path / f"rank-{rank}.log").write_text(waits)
    (tmp_path / "rank-1.log").write_text("CUDA error: uncorrectable ECC error encountered\n" + waits)
    status, evidence = classify(RunOutcome(codes={0: -6}), tmp_path, 60.0, 0)
    assert (status, "rank 1" in evidence) == ("infrastructure", True), evidence
    (tmp_path / "rank-1.log").write_text("step 7\n")
    status, evidence = classify(RunOutcome(codes={0: -6}), tmp_path, 60.0, 0)
    assert (status, evidence.split(" (")[0]) == (
        "timeout",
        "_REDUCE_SCATTER_BASE hung: ranks 0, 2, 3 waited in it; rank 1 did not join",
    )


def test_a_rank_that_died_comes_before_those_that_waited_for_it(tmp_path: Path) -> None:
    waits = "Timed out waiting 60000ms for recv operation to complete"
    exception(tmp_path, "RuntimeError", waits, "train", rank=0, traceback="line 3, in all_reduce\n")
    (tmp_path / "rank-1.log").write_text("step 3\n")
    status, evidence = classify(RunOutcome(codes={0: 1, 1: -9}), tmp_path, 60.0, 0)
    assert (status, "rank 1 was killed from outside with SIGKILL" in evidence) == ("killed", True)
    assert classify(RunOutcome(codes={0: 1, 1: -9}), tmp_path, 60.0, 1)[0] == "oom", "by the kernel, for memory"
    status, evidence = classify(RunOutcome(codes={0: 1}), tmp_path, 60.0, 0)
    assert (status, evidence.split(" (")[0]) == (
        "timeout",
        "all_reduce hung: rank 0 waited in it; rank 1 did not join",
    )


def test_a_rank_killed_while_they_come_together_is_no_fault_of_the_network(tmp_path: Path) -> None:
    said = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
    exception(tmp_path, "DistNetworkError", said, "groups")
    status, evidence = classify(RunOutcome(codes={1: 1, 0: -9}), tmp_path, 60.0, 0)
    assert (status, "rank 0 was killed from outside with SIGKILL" in evidence) == ("killed", True), evidence
    for codes in ({1: 1}, {1: 1, 0: -6}):  # no rank was killed: the network, or a rank that ended itself for it
        assert classify(RunOutcome(codes=codes), tmp_path, 60.0, 0)[0] == "infrastructure"


def test_a_gradient_that_is_no_number_is_wrong_not_refused(tmp_path: Path) -> None:
    said = "Unexpected result nan (message='found NaN in local grad norm for bucket #0 in backward pass before ...')"
    assert exception(tmp_path, "RuntimeError", said, "train")[0] == "wrong"


def test_packages_of_two_versions(tmp_path: Path) -> None:
    said = "cannot import name 'is_te_min_version' from 'megatron.core.utils'"
    status, evidence = exception(tmp_path, "ImportError", said, "import")
    assert status == "infrastructure"
    assert "packages of the interpreter are missing or incompatible" in evidence
    assert "is_te_min_version" in evidence
    status, evidence = exception(tmp_path, "ModuleNotFoundError", "No module named 'six'", "import")
    assert status == "infrastructure"
    assert evidence.split("; ")[-1].startswith("install those that the message names")


SEAMS = (
    ("TypeError", "get_batch_on_this_cp_rank() missing 1 required positional argument: 'is_hybrid_cp'"),
    ("TypeError", "DistributedDataParallel.__init__() got an unexpected keyword argument 'disable_bucketing'"),
    ("AttributeError", "module 'megatron.core.parallel_state' has no attribute 'is_pipeline_first_stage'"),
    ("ImportError", "cannot import name 'TECudaGraphHelper' from 'megatron.core.transformer.cuda_graphs'"),
    ("ModuleNotFoundError", "No module named 'megatron.core.distributed.fsdp'"),
)


@pytest.mark.parametrize(("kind", "said"), SEAMS)
@pytest.mark.parametrize("phase", ["import", "build", "train"])
def test_a_call_of_ours_that_the_engine_does_not_take_is_a_class_of_its_own(
    tmp_path: Path, kind: str, said: str, phase: str
) -> None:
    frames = 'Traceback (most recent call last):\n  File "{}", line 30, in micro_batches\n'
    ours = "/opt/venv/lib/python3.12/site-packages/autoscout/targets/megatron/worker/batches.py"
    status, evidence = exception(tmp_path, kind, said, phase, traceback=frames.format(ours))
    assert status == "infrastructure"
    assert evidence.startswith("AutoScout, not the configuration: this release of the engine does not accept a call of")
    assert said in evidence
    found = symptoms.named(evidence)
    assert found is symptoms.SEAM
    theirs = "/opt/venv/lib/python3.12/site-packages/megatron/core/tensor_parallel/layers.py"
    assert symptoms.SEAM.about not in exception(tmp_path, kind, said, phase, traceback=frames.format(theirs))[1]


def test_an_engine_that_a_warm_process_cannot_import_is_no_fact_about_a_configuration(tmp_path: Path) -> None:
    """megatron-core 0.19 imports triton, which its metadata does not require."""
    said = "in <module>\n    import triton\nModuleNotFoundError: No module named 'triton'"
    status, evidence = classify(RunOutcome(launcher_code=1, output=said), tmp_path, 60.0, 0)
    assert status == "infrastructure"
    assert "are missing or incompatible (the launcher: ModuleNotFoundError: No module named 'triton')" in evidence


def test_a_library_that_a_warning_names_is_not_the_cause() -> None:
    """torchao warns of its kernels for another torch in every run of Axolotl, whatever ends it."""
    said = "[2026-11-25 15:44:55] [{}] [torchao] Failed to load /x/_C.so: Could not load this library: /x/_C.so\n"
    assert symptoms.find(said.format("WARNING") + "RuntimeError: Cannot access accelerator device") is None
    assert symptoms.find("step 1\n" + said.format("ERROR")) is not None


def test_two_configurations_that_meet_the_same_fault_are_enough(tmp_path: Path) -> None:
    no_gpu = classified(tmp_path, TABLE[6])[1]
    (tmp_path / "rank-1.error.json").unlink()
    port = exception(tmp_path, "DistNetworkError", TABLE[9].text, "groups")[1]
    assert symptoms.stop([("a", no_gpu), ("a", no_gpu)]) == ""
    assert symptoms.stop([("a", no_gpu), ("b", port)]) == ""
    said = symptoms.stop([("a", no_gpu), ("b", port), ("c", no_gpu)])
    assert said.startswith(
        "two configurations failed because of the same problem (torch finds no GPU), so the session stops: check the"
    )
