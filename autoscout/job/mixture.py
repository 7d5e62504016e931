"""Checks a job's mixture of experts, weight formats and attention windows."""

from collections.abc import Iterator

from kb.records import Job
from kb.sizes import ONLY_EXPERTS

FIELDS = {"shared_ffn": "the experts that every token takes", "dense_layers": "the first layers without experts"}


def mixture_problems(job: Job) -> Iterator[str]:
    """Yields the problems of a job's mixture of experts, one sentence each."""
    model = job.model
    given = {name: getattr(model, name) for name in FIELDS if getattr(model, name)}
    for name, value in given.items():
        if not model.experts:
            yield (
                f"model.{name} = {value} ({FIELDS[name]}) applies to mixtures of experts only; set model.experts, "
                f"or remove model.{name}"
            )
    for name in ("stored", "plain_attention", "window", "windowed_layers", "sinks"):
        if getattr(model, name) and job.task != "serve":
            yield f"model.{name} = {getattr(model, name)!r} applies to serving only; remove it"
    if bool(model.window) != bool(model.windowed_layers):
        yield (
            "model.window (length of the attention window) and model.windowed_layers (number of layers with a "
            "window) must be set together"
        )
    if model.windowed_layers >= model.layers > 0:
        yield (
            f"model.windowed_layers = {model.windowed_layers} must be less than model.layers = {model.layers}, because "
            "at least one layer must have no window"
        )
    if model.plain_attention and model.stored in ("", *ONLY_EXPERTS):
        yield (
            "model.plain_attention has no effect without model.stored, the format of the weights; set "
            "model.stored or remove model.plain_attention"
        )
    if model.stored in ONLY_EXPERTS and not model.experts:
        yield (
            f"model.stored = '{model.stored}' is a format for experts, but the model has no experts; remove "
            "model.stored"
        )
    if model.dense_layers >= model.layers > 0:
        yield (
            f"model.dense_layers = {model.dense_layers} must be less than model.layers = {model.layers}, because at "
            "least one layer must have experts"
        )
