"""Checks whether a result was measured for this job, by its load, model, request lengths and failed requests.

This is necessary because a tool reports latencies of the successful requests even if some requests failed, and because
the files of two different loads may differ in only one of fifty keys."""

import math
import re
from collections.abc import Mapping

import numpy as np

from autoscout.job.device_names import device_meant, record_of
from autoscout.job.headers import ALIASES
from autoscout.job.presets import models
from autoscout.job.published_models import published
from autoscout.job.requests import of_traffic
from autoscout.job.words import listed
from autoscout.targets.found import Cell, number_in
from kb.records import Job, Model, Traffic, shape
from kb.sizes import parameters

# (mean, standard deviation) in tokens, for prompts, answers, and prompts plus answers, in this order
Lengths = list[tuple[float, float]]

# Names of conditions that a result may state. Numbers of tokens are means per request. An infinite or null rate or
# concurrency means no limit.
LOAD = ("rate", "concurrency", "burstiness", "ramp_up", "arrivals")
COUNTS = ("requests", "completed", "failed")
LENGTHS = ("input_tokens", "output_tokens", "total_tokens")
SIZES = ("seq_len", "global_batch", "devices", "layers", "hidden", "heads", "vocab")
CIRCUMSTANCES = (*LOAD, *COUNTS, *LENGTHS, *SIZES, "model", "engine")
# Columns of users' tables that state the conditions of a measurement.
COLUMNS = {
    **{name: name for name in (*LOAD, *SIZES[:2], "model")},
    **dict.fromkeys(("max_concurrency", "num_concurrent", "conc"), "concurrency"),
    **dict.fromkeys(("request_rate", "qps"), "rate"),
    **dict.fromkeys(("input_len", "isl", "prompt_len"), "input_tokens"),
    **dict.fromkeys(("output_len", "osl"), "output_tokens"),
    **dict.fromkeys(("model_id", "model_name"), "model"),
    **dict.fromkeys(("seq_length", "sequence_length", "seqlen"), "seq_len"),
    **dict.fromkeys(("global_batch_size", "gbs"), "global_batch"),
    **{name: name for name in ("layers", "hidden", "heads")},
    **{other: name for other, name in ALIASES.items() if name in ("layers", "hidden", "heads")},
    **{other: name for other, name in ALIASES.items() if name == "gpu"},
    "gpu": "gpu",
    **dict.fromkeys(("gpus", *(other for other, name in ALIASES.items() if name == "gpus")), "devices"),
    **dict.fromkeys(("num_prompts", "num_requests", "total_requests"), "requests"),
    **dict.fromkeys(("completed", "completed_requests", "successful_requests", "num_completed"), "completed"),
    **dict.fromkeys(("failed", "failed_requests", "num_failed", "num_failed_requests", "errors"), "failed"),
}
# In a table with one of these columns, a number of devices may be that of a node.
NODES = ("nodes", "num_nodes", "n_nodes", "nnodes")
# Mean lengths match if they differ by at most 10 %, or three standard errors of the mean, plus a few tokens: a chat
# template adds some tokens to a prompt, and end markers add one or two tokens to an answer.
_LENGTH, _ERRORS, _MARKS = 0.1, 3.0, {"input_tokens": 8, "output_tokens": 2, "total_tokens": 10}
# Tolerated factor between a model's size and the size in its name: "7B" may have 7.6 billion parameters, "8x7B" 47
# billion (a test checks this for the names of the presets).
_SIZE = 2.0
_COUNTED = 1e-6  # relative error of a number of requests computed from rates
_ROUNDED = 0.02  # relative error of a batch size computed from two rates that have three decimals
_WORD = re.compile(r"[a-z0-9_]+")
_BILLIONS = re.compile(r"(?<![a-z\d.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z\d])")


def failure(stated: Mapping[str, Cell]) -> str:
    """Returns a text with the number of failed requests; "" if none failed."""
    sent, completed = number_in(stated.get("requests")), number_in(stated.get("completed"))
    failed = number_in(stated.get("failed"))
    if math.isnan(failed):
        failed = sent - completed
    if failed > _COUNTED * (0.0 if math.isnan(sent) else sent):
        total = failed + completed if math.isnan(sent) else sent
        return f"{failed:.0f}{'' if math.isnan(total) else f' of {total:.0f}'} requests failed"
    return "no request was completed" if completed == 0 else ""


def another_job(stated: Mapping[str, Cell], job: Job, lengths: Lengths, table: bool = False) -> str:
    """Returns why the result does not belong to this job, with the differing values; "" if it does. `lengths`: from
    `lengths_of` for this job.

    Conditions that the result does not state are not checked, except that a serving result must state its load, unless
    it is a row of a user's `table`."""
    if not stated:
        return ""
    if found := _other_model(stated, job.model) or _other_device(str(stated.get("gpu") or ""), job):
        return found
    engine = str(stated.get("engine") or "")
    if engine and not job.launch.command and job.target not in _WORD.findall(engine.lower()):
        return f"the result was measured with {engine}, but the job's target is {job.target}"
    if job.task == "serve":
        lengths_count = not failure(stated)  # if requests failed, the stated lengths cover only the successful requests
        silent = table and not any(name in stated for name in LOAD)
        other = "" if silent else _other_load(stated, job.traffic)
        return other or (_other_lengths(stated, lengths) if lengths_count else "")
    return _other_sizes(stated, job)


def _other_device(says: str, job: Job) -> str:
    """Returns why a result was measured on other devices; "" for the job's, their variants and unknown ones."""
    kinds = {node.device for node in job.cluster.nodes}
    series = {name for kind in kinds if (known := record_of(kind)) for name in known.series}
    theirs = record_of(device_meant(says)) if says else None
    if theirs is None or not theirs.series or not series or series & {*theirs.series}:
        return ""
    return f"the result was measured on {says}, but the job has {listed(sorted(kinds))}"


def lengths_of(traffic: Traffic) -> Lengths:
    drawn = of_traffic(traffic)
    found = [np.asarray(each, float) for each in (drawn.input_len, drawn.output_len)]
    return [(float(each.mean()), float(each.std())) for each in (*found, found[0] + found[1])]


def _other_load(stated: Mapping[str, Cell], traffic: Traffic) -> str:
    wanted = _load(traffic.rate or math.inf, traffic.concurrency or math.inf)
    wanted = wanted if traffic.rate or traffic.concurrency else "the arrivals of a trace"
    if not any(name in stated for name in LOAD):
        return f"the result does not state its load, but the job has {wanted}"
    rate, limit = _limit(stated, "rate"), _limit(stated, "concurrency")
    sent, burstiness, ramp = (
        number_in(stated.get("requests")),
        number_in(stated.get("burstiness")),
        stated.get("ramp_up"),
    )
    arrivals = stated.get("arrivals") or ("poisson" if rate < math.inf else "closed" if limit < math.inf else "at once")
    if arrivals in ("closed", "at once", "one at a time"):
        rate, limit = math.inf, 1.0 if arrivals == "one at a time" else limit
    never_full = limit == math.inf or limit >= sent  # the concurrency limit never delays a request
    if traffic.concurrency:
        all_at_once = never_full and traffic.concurrency >= sent
        same = rate == math.inf and (limit == traffic.concurrency or all_at_once)
    else:
        same = bool(traffic.rate) and math.isclose(rate, traffic.rate, rel_tol=1e-3) and never_full
    found = _load(rate, limit)
    if arrivals not in ("poisson", "closed", "at once", "one at a time"):
        same, found = False, f"{found} ({arrivals} arrivals)"
    if rate != math.inf and burstiness == burstiness != 1.0:
        same, found = False, f"{found} (burstiness {burstiness:g})"
    if ramp not in (None, "", 0, False):
        same, found = False, f"{found}, ramped up ({ramp})"
    return "" if same else f"the result was measured with {found}, but the job has {wanted}"


def _load(rate: float, limit: float) -> str:
    """Returns a load as text; infinity means no limit."""
    arrivals = [f"{rate:g} requests/s"] if math.isfinite(rate) else []
    at_a_time = [f"at most {limit:g} requests at a time"] if math.isfinite(limit) else []
    return " and ".join(arrivals + at_a_time) or "all requests at once"


def _other_lengths(stated: Mapping[str, Cell], lengths: Lengths) -> str:
    count = number_in(stated.get("completed"))
    for name, (mean, spread) in zip(LENGTHS, lengths, strict=True):
        found = number_in(stated.get(name))
        error = spread if math.isnan(count) else _ERRORS * spread / math.sqrt(max(count, 1.0))
        if not math.isnan(found) and abs(found - mean) > max(_LENGTH * mean, error) + _MARKS[name]:
            return f"the result has {found:,.0f} {name.replace('_', ' ')} per request, but the job has {mean:,.0f}"
    return ""


def _other_model(stated: Mapping[str, Cell], model: Model) -> str:
    """Returns why the result's model is not the job's, judged by the published shape or the size in the model's name;
    "" if it may be."""
    named = str(stated.get("model") or "")
    if not named or not model.layers:
        return ""
    preset = published(named).get("preset")
    here = shape(model)
    if preset:
        there = models()[preset]
        if (there["layers"], there["hidden"]) != (here.layers, here.hidden):
            sizes = f"{there['layers']} layers of {there['hidden']:,}"
            return (
                f"the result is of model {named} ({sizes}), but the job's model has {here.layers} layers of "
                f"{here.hidden:,}"
            )
        return ""
    size, count = size_stated(named), parameters(model)
    if size and not size / _SIZE <= count <= size * _SIZE:
        return f"the result is of model {named}, but the job's model has {count / 1e9:.3g} billion parameters"
    return ""


def size_stated(named: str) -> float:
    """Returns the number of parameters according to a model's name ("…-8x7B"); 0 if the name states none."""
    found = _BILLIONS.search(named.rpartition("/")[2].lower())
    return int(found[1] or 1) * float(found[2]) * (1e9 if found[3] == "b" else 1e6) if found else 0.0


def _other_sizes(stated: Mapping[str, Cell], job: Job) -> str:
    here = shape(job.model)
    wanted = {"seq_len": job.traffic.seq_len, "global_batch": job.traffic.global_batch, "devices": job.devices}
    wanted |= {name: getattr(here, name) for name in ("layers", "hidden", "heads", "vocab")}
    for name, value in wanted.items():
        found = number_in(stated.get(name))
        near = found and name == "global_batch" and abs(found - value) <= _ROUNDED * value
        if value and not math.isnan(found) and found != value and not near:
            return f"the result is of a different job: its {name} is {found:g}, not {value}"
    return ""


def _limit(stated: Mapping[str, Cell], name: str) -> float:
    """Returns the limit (rate or concurrency) with this name; infinity if none is stated. Errors: ValueError if it is
    not a number."""
    value = stated.get(name)
    return math.inf if value in (None, "", "null", "None") else float(value)
