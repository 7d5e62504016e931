"""Do shadows refuse what Megatron-core refuses? Random assignments of small jobs, valid ones and ones with a knob off
valid, asked of both: Megatron with real tensors (tests/autoscout/oracle) and its shadow.

    PYTHONPATH=. python tests/tools/shadow_verdicts.py [ASSIGNMENTS]
"""

import os
import sys

import numpy as np

sys.path.insert(0, "tests/autoscout/oracle")

from agreement import Answers, assignments
from megatron_oracle import BEYOND, _feasible_job

from autoscout.targets.jobs import JobSpace
from autoscout.targets.megatron.arguments import variables
from autoscout.targets.megatron.profiler import worker_config
from autoscout.targets.megatron.shadow import ask

EACH = 12  # assignments of a job


def main(count: int) -> None:
    spaces: dict[str, JobSpace] = {}
    found = (job for i in range(10_000) if (job := _feasible_job(i, 1, spaces)))
    agreed = asked = both = 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for number, job in enumerate(found):
        if asked >= count:
            break
        space = spaces[job.name]
        chosen = [
            c
            for c in assignments(space, EACH, np.random.default_rng([1, number]), BEYOND)
            if c.knobs.get("ep", 1) == 1  # how many tokens another rank's router sends is not to be invented
        ]
        environment |= variables(job, chosen[0])
        questions = [
            {"world": job.devices, "rank": job.devices - 1, "deep": True, "config": worker_config(job, c, [])}
            for c in chosen
        ]
        with Answers(sys.executable, "megatron_answers.py", environment) as oracle:
            real = [oracle.ask(question) for question in questions]
        told = ask([shadow_question(question) for question in questions], [sys.executable], 600.0)
        for configuration, refused, rank in zip(chosen, real, told, strict=True):
            asked += 1
            same = bool(refused) == (rank.verdict == "refused") and rank.verdict != "untraceable"
            agreed += same
            both += same and bool(refused)
            if not same:
                name = space.name(configuration)
                print(f"{job.name} {name}: real {refused or 'takes it'}; shadow {rank.verdict} {rank.message[:200]}")
        print(f"{agreed} of {asked} alike ({both} refused by both)", flush=True)


def shadow_question(question: dict) -> dict:
    config = question["config"]
    return {
        "arguments": config["arguments"],
        "device": config["device"],
        "world": question["world"],
        "rank": question["rank"],
        "stand_ins": False,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
