"""Stands for a person's training script: says a line an iteration, as fast as its settings make it.

trainer.py [--mbs N] [--workers N] [--fast] [--steps N] [--end HOW]
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

flags = sys.argv[1:]


def flag(name, default):
    return flags[flags.index(name) + 1] if name in flags else default


mbs, workers = int(flag("--mbs", 1)), int(flag("--workers", 0))
step = (0.012 / mbs**0.5 + 0.004 * abs(workers - 2)) * (0.7 if "--fast" in flags else 1.0)
how = flag("--end", os.environ.get("END", ""))
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "daemon":
    sleeper = "import os, time; os.setsid(); os.fork() and os._exit(0); print(os.getpid(), flush=True); time.sleep(600)"
    subprocess.run([sys.executable, "-c", sleeper], stdout=open("daemon.pid", "w"), check=True)  # noqa: SIM115
if how == "crash":
    raise ValueError("hidden 7 is not a multiple of heads 2")
if how == "silent":
    print("nothing worth reading: step 1 of 3 took 12.5 milliseconds")
    sys.exit(0)
if how == "oom":
    full = "GPU 0 has a total capacity of 79.15 GiB of which 512.00 MiB is free."
    print(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {full}", file=sys.stderr)
    sys.exit(1)
if how == "talks":
    print("warning: last time there was an error, CUDA out of memory; all is well now")
if how == "half":
    with open(os.environ["AUTOSCOUT_RESULT"], "w") as file:
        file.write('{"step_time_s": 0.0')
    sys.exit(0)
if how == "result":
    with open(os.environ["AUTOSCOUT_RESULT"], "w") as file:
        json.dump({"step_time_s": step, "quality": 0.9, "deep": {"er": [1, 2.5]}}, file)
    sys.exit(0)
if how in ("aborts", "fails and aborts", "aborts before"):  # as a process ends whose threads still run
    if how != "aborts before":
        with open(os.environ["AUTOSCOUT_RESULT"], "w") as file:
            json.dump({"step_time_s": step, "quality": 0.9, "deep": {"er": [1, 2.5]}}, file)
    failed = "ValueError: no space for the checkpoint\n" if how == "fails and aborts" else ""
    print(failed + "terminate called without an active exception", file=sys.stderr, flush=True)
    os.abort()
if how == "loud":
    for _ in range(64):
        sys.stdout.write(("x" * 99 + "\n") * 10_000)
for i in range(3 if how == "piped" else int(flag("--steps", 10_000))):
    took = step * random.lognormvariate(0, 0.02) * (4 - i if how == "warms" and i < 3 else 1)
    time.sleep(took)
    loss = "nan" if how == "nan" and i == 2 else f"{6 - 0.01 * i:.4f}"
    if how != "mute":
        print(f"iteration {i} | elapsed time per iteration (ms): {1000 * took:.2f} | lm loss: {loss}")
if how == "piped":  # as `python train.py | tee log` ends
    print("Traceback (most recent call last):\n  File 'train.py', line 7\nValueError: the data has ended", flush=True)
