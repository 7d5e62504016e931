"""Writes the results of `when --watch` as OpenMetrics text to a file, which is replaced atomically."""

import os
from pathlib import Path
from typing import Any, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, disable_created_metrics
from prometheus_client.openmetrics.exposition import generate_latest

from autoscout.deploy.watch_load import WinnerWatch
from autoscout.deploy.when import Kind
from kb.records import AutoscoutError

T = TypeVar("T", Counter, Enum, Gauge)


def written(watch: WinnerWatch, session: str, file: Path) -> None:
    """Writes the file. Errors: AutoscoutError if it cannot be written."""
    part = file.with_name(file.name + ".part")
    try:
        part.write_bytes(openmetrics(watch, session))
        os.replace(part, file)
    except OSError as error:
        raise AutoscoutError(
            f"{file}: cannot be written ({error.strerror}); give a file in a folder that you can write to"
        ) from error


def openmetrics(watch: WinnerWatch, session: str) -> bytes:
    disable_created_metrics()  # they would show the time when the file was written, not when the watch began
    registry = CollectorRegistry()

    def metric(kind: type[T], name: str, words: str, *labels: str, **more: Any) -> T:
        return kind(f"autoscout_when_{name}", words, ["session", *labels], registry=registry, **more)

    if watch.answer:
        answer = metric(Enum, "answer", "Whether the winner is still right.", states=get_args(Kind))
        answer.labels(session).state(watch.answer.kind)
        if watch.answer.gain:
            gain = metric(Gauge, "rival_gain_ratio", "Cost of the winner / that of the best rival, as predicted.")
            gain.labels(session).set(watch.answer.gain)
    if watch.moved:
        share = metric(Gauge, "alarm_share", "Evidence of a changed load or step time / the alarm threshold.")
        share.labels(session).set(watch.moved.share)
    ratio = metric(Gauge, "now_ratio", "Present value / value when the winner was tuned.", "number")
    for name, value in watch.now.items():
        ratio.labels(session, name).set(value)
    metric(Counter, "changes", "How often the answer changed.").labels(session).inc(watch.changes)
    metric(Counter, "restarts", "How often the server or the log restarted.").labels(session).inc(watch.restarts)
    return generate_latest(registry)
