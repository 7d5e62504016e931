"""A mixture of experts in a job: what can be wrong with its shared experts and its first layers without any; and with
what only servers read, formats of stored weights and windows of attention."""

from collections.abc import Iterator

from kb.records import Job
from kb.sizes import ONLY_EXPERTS

BESIDE = {"shared_ffn": "the experts that every token takes", "dense_layers": "the first layers without experts"}


def mixture_problems(job: Job) -> Iterator[str]:
    """What is wrong with a job's mixture of experts, one sentence each."""
    model = job.model
    said = {name: getattr(model, name) for name in BESIDE if getattr(model, name)}
    for name, value in said.items():
        if not model.experts:
            yield f"model.{name} = {value} is of a mixture ({BESIDE[name]}); give model.experts, or leave it out"
    for name in ("stored", "plain_attention", "window", "windowed_layers"):
        if getattr(model, name) and job.task != "serve":
            yield f"model.{name} = {getattr(model, name)!r} is of serving; leave it out"
    if bool(model.window) != bool(model.windowed_layers):
        yield "model.window and model.windowed_layers belong together: how long, and in how many layers"
    if model.windowed_layers >= model.layers > 0:
        yield f"model.windowed_layers = {model.windowed_layers} leaves none of {model.layers} that sees all tokens"
    if model.plain_attention and model.stored in ("", *ONLY_EXPERTS):
        yield "model.plain_attention is of weights whose other products are stored in another format; leave it out"
    if model.stored in ONLY_EXPERTS and not model.experts:
        yield f"model.stored = '{model.stored}' is of experts, which this model has none of; leave it out"
    if model.dense_layers >= model.layers > 0:
        yield f"model.dense_layers = {model.dense_layers} leaves none of {model.layers} layers with experts"
