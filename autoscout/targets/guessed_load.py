"""The default load that `init` writes for a server, and the note that asks the user to review it."""

GUESSED = {"concurrency": 32, "input_len": 1024, "output_len": 256}
REVIEW_LOAD = "traffic: the tokens of your users' prompts and answers, and the number of users; these are guesses"
REVIEW_PROMISE = "objective: add the limits that you promise your users, such as constraints = ['ttft_p99_ms <= 2000']"
