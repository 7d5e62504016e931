"""What `init` writes for a server whose line gives no load, and the note that asks the user to review it."""

GUESSED = {"concurrency": 32, "input_len": 1024, "output_len": 256}
REVIEW_LOAD = "traffic: what your users ask with and read, in tokens, and how many there are; these are guesses"
REVIEW_PROMISE = "objective: add what you promise your users, constraints = ['ttft_p99_ms <= 2000']"
