"""Do shadows refuse what Megatron-core refuses? Random assignments of small jobs, valid ones and ones with a knob off
valid, asked of both: Megatron with real tensors (tests/autoscout/oracle) and its shadow.

    PYTHONPATH=. python tests/tools/shadow_verdicts.py [ASSIGNMENTS [FIRST_JOB]]

What was not answered in time counts as not asked. Where the space and Megatron disagree, that is said too.
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

EACH = 24  # assignments of a job
LIMIT_S = 3600.0


def main(count: int, first: int = 0) -> None:
    spaces: dict[str, JobSpace] = {}
    found = (job for i in range(first, 10_000) if (job := _feasible_job(i, 1, spaces)))
    agreed = asked = both = 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for number, job in enumerate(found):
        if asked >= count:
            break
        space = spaces[job.name]
        chosen = [
            c
            for c in assignments(space, EACH, np.random.default_rng([1, first + number]), BEYOND)
            if c.knobs.get("ep", 1) == 1  # how many tokens another rank's router sends is not to be invented
        ]
        environment |= variables(job, chosen[0])
        questions = [
            {"world": job.devices, "rank": job.devices - 1, "deep": True, "config": worker_config(job, c, [])}
            for c in chosen
        ]
        with Answers(sys.executable, "megatron_answers.py", environment) as oracle:
            real = [oracle.ask(question) for question in questions]
        told = ask([shadow_question(question) for question in questions], [sys.executable], LIMIT_S)
        for configuration, refused, rank in zip(chosen, real, told, strict=True):
            if rank.verdict == "timeout":
                continue
            asked += 1
            name = space.name(configuration)
            rules = [violation.rule for violation in space.violations(configuration)]
            if not rules and refused:
                print(f"{job.name} {name}: the space takes it, Megatron refuses it: {refused}", flush=True)
            same = bool(refused) == (rank.verdict == "refused") and rank.verdict != "untraceable"
            agreed += same
            both += same and bool(refused)
            if not same:
                said = f"{rank.verdict} {rank.message[:200]}"
                print(f"{job.name} {name}: real {refused or 'takes it'}; shadow {said}", flush=True)
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
    main(*(int(word) for word in sys.argv[1:3] or ["300"]))
