"""Segments of a job's traffic: traces of several loads (morning, evening, batch night) for one configuration."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from autoscout.job.trace import read_trace, with_trace_id
from kb.records import Job


def segment_problems(job: Job) -> Iterator[str]:
    """Yields what is wrong with the segments, if the job has any. Errors: AutoscoutError (exit 2) if a trace cannot be
    read or is empty."""
    traffic = job.traffic
    if not traffic.segments:
        return
    if job.task != "serve":
        yield f"traffic.segments are loads of a server, but this job has task = '{job.task}'; remove them"
    if traffic.trace:
        yield "traffic has both a trace and segments; keep one of them"
    if len(traffic.segments) < 2:
        yield "traffic.segments has a single trace; give at least two, or give it as traffic.trace"
    known: set[str] = set()
    for trace in traffic.segments:
        if os.path.realpath(trace) in known:
            yield f"traffic.segments names {trace} twice, which would count its load twice; remove one of them"
        known.add(os.path.realpath(trace))
        arrivals = read_trace(Path(trace))[0]
        if arrivals is None and not (traffic.rate or traffic.concurrency):
            yield f"{trace} has no column arrival_s; give traffic.rate or traffic.concurrency"


def segment_jobs(job: Job) -> dict[str, Job]:
    """Returns for each segment, by a short name, the job with this load alone."""
    loads = [msgspec.structs.replace(job.traffic, trace=trace, segments=[]) for trace in job.traffic.segments]
    jobs = [msgspec.structs.replace(job, traffic=with_trace_id(load)) for load in loads]
    return dict(zip(_names(job.traffic.segments), jobs, strict=True))


def _names(traces: list[str]) -> list[str]:
    """Returns the name of each file, or its path below the common folder if two files have the same name."""
    names = [Path(trace).name for trace in traces]
    if len(set(names)) == len(names):
        return names
    return [os.path.relpath(trace, os.path.commonpath(traces)) for trace in traces]
