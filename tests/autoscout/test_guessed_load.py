"""What `init` says of a server's load, which its line does not tell."""

import shlex

import pytest

from autoscout.machine.starting import job_file


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vllm serve x/Llama-3.1-8B --max-num-seqs 256", True),
        ("vllm serve x/Llama-3.1-8B --max-num-seqs 32", False),
        ("vllm serve x/Llama-3.1-8B", False),
        ("vllm serve x/Llama-3.1-8B --max-num-seqs 256 & vllm bench serve --num-prompts 64 --input-len 9", False),
    ],
)
def test_a_limit_above_the_guessed_users_is_pointed_out(line, said, tmp_path):
    notes = job_file(shlex.split(line), tmp_path)[1]
    words = "32 users is a guess, because the launch line only limits concurrent requests to 256; write your own number"
    assert (f"traffic.concurrency: {words}" in notes) is said
