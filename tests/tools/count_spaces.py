"""Counts the configurations of the jobs: as shipped, with Transformer Engine, and with the knobs of the paper's Table
1.

PYTHONPATH=. python tests/tools/count_spaces.py
"""

from pathlib import Path

import msgspec

from autoscout.targets.jobs import JobSpace, load_job
from kb.records import Job, SpaceLimits

PAPER = ("llama-3.2-3b", "llama-3.1-nemotron-nano-8b", "qwen3-30b-a3b", "llama-3-8b-serve")
# Table 1: pp tp dp ep cp sp ar mbs ddp tp_comm ddp_bucket; `ar` on or off, buckets of 1 to 8 MiB. Other knobs keep
# their defaults.
TABLE_1 = SpaceLimits(
    fix={
        "vpp": 1,
        "stage_split": "even",
        "first_layers": 0,
        "last_layers": 0,
        "a40_layers": 0,
        "etp": 1,
        "dispatcher": "alltoall",
        "overlap_grad": True,
        "overlap_param": False,
        "ar_method": "uniform",
        "ar_layers": 1,
        "ar_modules": "core_attn",
        "cp_comm": "p2p",
        "permute_fusion": False,
        "ce_fusion": False,
    },
    limit={"ar": ["none", "full"], "ddp_bucket": [1, 2, 4, 8]},
)


def main() -> None:
    print("| job | as shipped | with Transformer Engine | the knobs of Table 1 |\n|---|---|---|---|")
    jobs = [path for folder in ("jobs", "large") for path in Path("fixtures", folder).glob("*.toml")]
    for path in sorted(jobs, key=lambda path: (path.stem not in PAPER, path.stem)):
        job = of_catalog(path)
        cells = [JobSpace.of_job(job).count]
        if job.name in PAPER and job.target == "megatron":
            te = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, transformer_engine=True))
            cells += [JobSpace.of_job(te).count, JobSpace.of_job(_limited(te)).count]
        shown = [f"{count:,}" for count in cells] + [""] * (3 - len(cells))
        print(f"| {job.name} | {' | '.join(shown)} |")


def of_catalog(path: Path) -> Job:
    """The job with the space of its catalog's release of Megatron-core, independent of the installed one."""
    job = load_job(path)
    if job.target != "megatron":
        return job
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, command_prefix=["env"]))


def _limited(job: Job) -> Job:
    return msgspec.structs.replace(job, space=TABLE_1)


if __name__ == "__main__":
    main()
