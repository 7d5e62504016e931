"""What a run that ran out of memory lacked at least, by the messages of what it ran on."""

import json

import pytest

from autoscout.running.out_of_memory import SHORT, of_run, short_gib

SINCE_2_1 = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 25.10 GiB. GPU 0 has a total capacty of 39.39 GiB "
    "of which 13.58 GiB is free. Including non-PyTorch memory, this process has 25.80 GiB memory in use. Of the "
    "allocated memory 25.23 GiB is allocated by PyTorch, and 12.97 MiB is reserved by PyTorch but unallocated."
)
TEXTS = {
    SINCE_2_1: 25.80 + 25.10 - 39.39,
    # What process 4711 holds is not ours: with it 2.05 GiB were lacking.
    "HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 63.98 GiB of which 1.00 MiB is free. "
    "Process 4711 has 1.80 GiB memory in use. Including non-PyTorch memory, this process has 62.23 GiB memory in use. "
    "Of the allocated memory 60.00 GiB is allocated by PyTorch, with 60.00 MiB allocated in private pools (e.g., CUDA "
    "Graphs), and 1.00 GiB is reserved by PyTorch but unallocated.": 62.23 + 2.0 - 63.98,
    "CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 GiB of which 0 bytes is free. "
    "Of the allocated memory 2.93 GiB is allocated by PyTorch": 1.70,
    "CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 79.15 GiB total capacity; 76.42 GiB already allocated; "
    "128.50 MiB free; 78.90 GiB reserved in total by PyTorch)": 78.90 + 0.5 - 79.15,
    "RESOURCE_EXHAUSTED: Attempting to allocate 12.50G. That was not possible. There are 10.25G free.": 2.25,
    "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (3.5 GiB). Based on the available memory": 12.5,
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": 0.0,
    "NCCL WARN Failed to CUDA calloc async 608 bytes": 0.0,
    "step 1, loss 3.2": 0.0,
}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:30])
def test_what_was_lacking_is_what_was_tried_over_what_the_device_has_left(text):
    assert short_gib(f"step 1\n{text}\nframe #9") == pytest.approx(TEXTS[text])


def test_the_rank_that_lacked_most_counts(tmp_path):
    (tmp_path / "rank-0.log").write_text("CUDA out of memory. Tried to allocate 2 GiB\n")
    assert of_run(tmp_path) == {}
    (tmp_path / "rank-1.log").write_text(next(t for t, short in TEXTS.items() if short == 1.70))
    error = {"type": "OutOfMemoryError", "message": SINCE_2_1, "traceback": "", "in_megatron": True, "phase": "train"}
    (tmp_path / "rank-2.error.json").write_text(json.dumps({**error, "steps": 0, "time": 1.0}))
    assert of_run(tmp_path) == {SHORT: pytest.approx(25.80 + 25.10 - 39.39)}
