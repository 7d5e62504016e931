"""The workloads of a job, as numbers: the model's shape and its traffic, each with its weight."""

from typing import Any

from autoscout.job.trace import lengths
from kb.records import Job, shape

Workload = dict[str, Any]


def workloads(job: Job) -> list[tuple[float, Workload]]:
    """The job's own, with weight 1, and those of its mix. `length`: tokens of a sample or prompt; `batch`: samples of a
    step, or users at once; `tokens`: of a step or request; `longest`: prompt and answer."""
    own = (1.0, _numbers(job.model, job.task, job.traffic.seq_len, job.traffic.global_batch, *_served(job)))
    return [
        own,
        *(
            (w.weight, _numbers(w.model, w.task, w.seq_len, w.global_batch, w.seq_len, w.output_len, w.concurrency))
            for w in job.traffic.mix
        ),
    ]


def _served(job: Job) -> tuple[int, int, int]:
    if job.task != "serve":
        return 0, 0, 0
    inputs, outputs = lengths(job)
    return round(sum(inputs) / len(inputs)), round(sum(outputs) / len(outputs)), job.traffic.concurrency


def _numbers(model: Any, task: str, seq_len: int, batch: int, prompt: int, output: int, users: int) -> Workload:
    m, serving = shape(model), task == "serve"
    length = prompt if serving else seq_len
    return {
        **{name: getattr(m, name) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")},
        **{name: getattr(m, name) for name in ("experts", "expert_ffn", "topk")},
        "gated": int(m.gated),
        "serving": int(serving),
        "length": length,
        "batch": users if serving else batch,
        "output": output,
        "longest": length + output if serving else length,
        "tokens": output if serving else batch * length,
    }
