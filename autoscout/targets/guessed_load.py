"""The default load that `init` writes for a server, and the note that asks the user to review it."""

GUESSED = {"concurrency": 32, "input_len": 1024, "output_len": 256}
REVIEW_LOAD = "traffic: the lengths of prompts and answers and the number of users are guesses; write your own"
REVIEW_PROMISE = (
    "objective: add the latency limits that you promise your users, such as constraints = ['ttft_p99_ms <= 2000']"
)
