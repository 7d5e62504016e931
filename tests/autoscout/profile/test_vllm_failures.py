"""vLLM's own messages (verbatim, 0.32.0) become a class and one sentence; without vLLM."""

from pathlib import Path

import msgspec
import pytest

from autoscout.running import symptoms
from autoscout.running.outcome import RunOutcome
from autoscout.running.results import RankError
from autoscout.targets.vllm import failures
from autoscout.targets.vllm.failures import cause_in_log, classify

PYDANTIC = """1 validation error for SchedulerConfig
  Value error, max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64). [type=value_error, \
input_value=ArgsKwargs((), {'runner_t..., 'stream_interval': 1}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error"""
KV = (
    "To serve at least one request with the model's max seq len (256), (0.0 GiB KV cache is needed, which is larger "
    "than the available KV cache memory (0.0 GiB). Based on the available memory, the estimated maximum model length is"
)
BLOCKS = (
    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine"
)
HOST = (
    "Available memory on node 0 (18.23/23.54 GiB) on kv cache allocation is less than requested memory for kv (400.0)"
)
SEEN = [
    ("config", "ValidationError", PYDANTIC, "invalid", "configuration was made: max_num_batched_tokens (32) must be"),
    ("config", "ValueError", "Unknown quantization method: bitsandbytes.", "invalid", "Unknown quantization method"),
    (
        "config",
        "TypeError",
        "EngineArgs.__init__() got an unexpected keyword argument 'swap_space'",
        "invalid",
        "swap_space",
    ),
    ("build", "ValueError", "No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).", "invalid", "engine started"),
    ("build", "ValueError", KV, "oom", "KV cache is too small for one request"),
    ("build", "ValueError", BLOCKS, "oom", "KV cache is too small for one request"),
    ("build", "ValueError", HOST, "oom", "out of memory when the engine started"),
    ("build", "AssertionError", "Not enough allowed NUMA nodes to bind threads", "invalid", "NUMA"),
    ("build", "RuntimeError", "_C::static_scaled_fp8_quant() expected at most 0 argument(s)", "invalid", "fp8_quant"),
    ("build", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", "oom", "when the engine started"),
    ("load", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", "oom", "under load"),
    ("load", "KeyError", "'0-9097bfea'", "error", "under load"),
    ("build", "RuntimeError", "CUDA error: an illegal memory access was encountered", "error", "illegal memory access"),
]


@pytest.mark.parametrize(("phase", "kind", "message", "status", "words"), SEEN)
def test_messages_become_classes(tmp_path: Path, phase: str, kind: str, message: str, status: str, words: str) -> None:
    error = RankError(type=kind, message=message, traceback="", in_megatron=False, phase=phase, steps=0, time=1.0)
    (tmp_path / "rank-0.error.json").write_bytes(msgspec.json.encode(error))
    found, evidence = classify(RunOutcome(codes={0: 1}), tmp_path, 60.0, 0)
    assert found == status
    assert words in evidence
    assert "\n" not in evidence
    assert "errors.pydantic.dev" not in evidence
    assert str(tmp_path) in evidence


ENGINE = """(APIServer pid=1) INFO 11-20 10:00:00 [api_server.py:1] vLLM API server version 0.32.0
(EngineCore pid=2) ERROR 11-20 10:00:01 [core.py:12] EngineCore failed to start.
(EngineCore pid=2) ERROR 11-20 10:00:01 [core.py:12] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-20 10:00:01 [core.py:12]     raise ValueError(
(EngineCore pid=2) ERROR 11-20 10:00:01 [c.py:1] ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).
(EngineCore pid=2) Process EngineCore:
(EngineCore pid=2) ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
REFUSED = """Traceback (most recent call last):
  File "arg_utils.py", line 1, in create_engine_config
pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig
  Value error, max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64). [type=value_error, \
input_value=ArgsKwargs((), {'runner_t..., 'stream_interval': 1}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
CRASHED = """INFO:     Application startup complete.
Fatal Python error: Illegal instruction

Thread 0x00007fb579fd36c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007fb5f98db7c0 (most recent call first):
  File "/venv/site-packages/torch/_ops.py", line 1279 in __call__
  File "/venv/site-packages/vllm/_custom_ops.py", line 3927 in cpu_attention_with_kv_cache
(APIServer pid=1) ERROR 11-26 10:46:08 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
"""


def test_the_root_cause_in_a_servers_log() -> None:
    assert cause_in_log(ENGINE) == ("ValueError", "No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).")
    kind, message = cause_in_log(REFUSED) or ("", "")
    assert kind == "ValidationError"
    assert "must be greater than or equal to max_num_seqs (64)" in message
    unknown = "usage: vllm serve [model_tag] [options]\nvllm: error: unrecognized arguments: --no-such-flag 3\n"
    assert cause_in_log(unknown) == ("UsageError", "unrecognized arguments: --no-such-flag 3")
    crash = ("a crash", "Illegal instruction in cpu_attention_with_kv_cache of _custom_ops.py")
    assert cause_in_log(CRASHED) == crash, "an engine that dies without an error was told as 'see stack trace above'"
    assert cause_in_log("INFO all is well\nAvailable routes are:\n") is None


def test_what_left_no_error(tmp_path: Path) -> None:
    (tmp_path / "launcher.log").write_text("Loading weights\n")
    status, evidence = classify(RunOutcome(timed_out=True), tmp_path, 60.0, 0)
    assert status == "timeout"
    assert "the server was not ready after 60 s; its last line: Loading weights" in evidence
    assert classify(RunOutcome(stopped=True), tmp_path, 60.0, 0)[0] == "killed"
    assert classify(RunOutcome(launcher_code=139), tmp_path, 60.0, 0) == (
        "error",
        f"vLLM crashed with SIGSEGV; its last line: Loading weights (logs: {tmp_path})",
    )
    assert classify(RunOutcome(codes={0: -9}), tmp_path, 60.0, 0)[0] == "killed"
    assert classify(RunOutcome(codes={0: -9}), tmp_path, 60.0, 1)[0] == "oom"
    assert classify(RunOutcome(launcher_code=3), tmp_path, 60.0, 0)[0] == "error"


def test_every_phase_has_its_words() -> None:
    assert set(failures._PHASES) == {"import", "config", "build", "load"}


SEAMS = (
    ("TypeError", "LLMEngine.__init__() got an unexpected keyword argument 'multiprocess_mode'"),
    ("ImportError", "cannot import name 'RequestOutputKind' from 'vllm.sampling_params'"),
)


@pytest.mark.parametrize(("kind", "said"), SEAMS)
@pytest.mark.parametrize("phase", ["import", "config", "build", "load"])
def test_a_call_of_ours_that_a_release_does_not_take_is_no_fact_about_a_configuration(
    tmp_path: Path, kind: str, said: str, phase: str
) -> None:
    """At the import it was told as packages that are missing, later as a configuration that vLLM refuses."""
    ours = "/opt/venv/lib/python3.12/site-packages/autoscout/targets/vllm/worker/serve.py"
    frames = f'Traceback (most recent call last):\n  File "{ours}", line 117, in built\n'
    error = RankError(type=kind, message=said, traceback=frames, in_megatron=False, phase=phase, steps=0, time=1.0)
    (tmp_path / "rank-0.error.json").write_bytes(msgspec.json.encode(error))
    found, evidence = classify(RunOutcome(codes={0: 1}), tmp_path, 60.0, 0)
    assert found == "infrastructure"
    assert symptoms.named(evidence) is symptoms.SEAM
    assert said in evidence
