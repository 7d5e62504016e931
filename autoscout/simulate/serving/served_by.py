"""Looks up each configuration's engine in the engine records (simulate/engine_records.py): the groups of figures for
its release, and the release whose scheduling rules apply."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from autoscout.simulate.engine_records import (
    NEWEST,
    Family,
    ReleaseRow,
    Version,
    families,
    family_of,
    folder,
    release_of,
    standing_for,
)
from kb.records import AutoscoutError

Steps = list[list[float]]  # [GiB of device memory, value from this size up], ascending


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of all groups of figures. `source`: origin of the figures; `n`: number of measurements behind them (0:
    read in the engine's code, or assumed); `fitted_by`: the command that fits the figures and prints their error."""

    source: str
    n: int
    fitted_by: str = ""


class Schedule(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engine's default scheduling. `prompts_first`: prompts take precedence, and a step has prompts or decodes, not
    both; `beside`: the host prepares the next step while the device works; `cut`: chunked prefill; `cuts_mix`: with
    chunked prefill, steps mix prompts and decodes; `eager_prompts`: steps with prompts never run from a CUDA graph;
    `reserved`: share of the running requests' remaining answers for which the cache must have room to admit another;
    `keeps`: beginnings of prompts stay in the cache (vLLM since version 1 always does, unless it is told not to);
    `cut_beyond`: context length from which chunked prefill is on by default, `cut_step_tokens` per step (0: never)."""

    prompts_first: bool = False
    beside: bool = False
    cut: bool = False
    cuts_mix: bool = True
    eager_prompts: bool = False
    reserved: float = 0.0
    keeps: bool = False
    cut_beyond: int = 0
    cut_step_tokens: int = 0


class Room(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engine's default limits. `step_tokens`, `offline_step_tokens`: token budget of a step by a device's GiB, for
    servers and for fixed batches; `step_holds_request`: raise the budget to the longest request; `max_seqs`: concurrent
    sequences; `utilization`: reserved share of the device memory. `apart`: this share excludes activations; `of_free`:
    `utilization` is a share of the memory left after weights and activations; `keeps_all`: sliding-window layers cache
    all keys. If `kept_mib` > 0, the engine instead reserves all memory except `kept_mib`, `kept_token_mib` per token of
    a step, `kept_graph_mib` per CUDA graph (`kept_graphs` by GiB) and `kept_tp_mib` per tensor parallel device, in
    total at least `kept_least_mib` (by GiB)."""

    step_tokens: Steps
    offline_step_tokens: Steps
    step_holds_request: bool = False
    max_seqs: Steps
    utilization: float = 0.9
    apart: bool = False
    of_free: bool = False
    keeps_all: bool = False
    kept_mib: float = 0.0
    kept_least_mib: Steps = []
    kept_token_mib: float = 0.0
    kept_graphs: Steps = []
    kept_graph_mib: float = 0.0
    kept_tp_mib: float = 0.0


class HostShares(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The host's work, relative to [serving.host] of the device record: per `step`, and per `sequence` of a step.
    `unread_sequence` replaces `sequence` for batches whose tokens are not streamed. `alone_step`, `alone_sequence`
    replace `step` and `sequence` if the host does not overlap with the device (None: same values). `python`: false for
    an engine in C++, which launches kernels without delay."""

    python: bool = True
    step: float = 1.0
    sequence: float = 1.0
    unread_sequence: float | None = None
    alone_step: float | None = None
    alone_sequence: float | None = None


class Launches(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Kernel launches. `times`: time of a launch relative to vLLM's; `experts`: additional launches of a layer with
    experts; `block_experts`: additional launches if expert inputs are quantized in blocks; `graphs_end`: decode steps
    larger than the largest CUDA graph run without one."""

    times: float = 1.0
    experts: float = 0.0
    block_experts: float = 0.0
    graphs_end: bool = False


class EngineKernels(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engine's own kernels. `experts`, `mxfp4`: speed of expert kernels, and of MXFP4 expert kernels, relative to
    vLLM's Triton kernel; `mxfp4_in_eight`: a further factor of the latter on devices with 8-bit, but no 4-bit products;
    `sinks`: attention sinks slow prefill on no device; `expert_width`: on devices without 8-bit products, 4-bit experts
    are padded to a multiple of this width (0: to the usual one); `latent_token_us`: additional time of latent attention
    in a decode step, per layer; `serial_keys`: one block of threads reads all keys of a query head (see `reads_key_us`
    of the device); `shared_fused`: a shared expert as wide as the routed experts is computed as one of the routed
    experts, unless experts are distributed over devices; `shared_beside`: the shared expert runs concurrently with the
    routed experts."""

    experts: float = 1.0
    mxfp4: float = 1.0
    mxfp4_in_eight: float = 1.0
    sinks: bool = False
    expert_width: int = 0
    latent_token_us: float = 0.0
    serial_keys: bool = False
    shared_fused: bool = False
    shared_beside: bool = False


class Outside(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """GiB per device outside of the engine's own memory: driver context and libraries, without and with NCCL."""

    outside_gib: float
    outside_nccl_gib: float


class FrontEnd(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The API server. `seconds`: mean time of a request in the server, before and after the engine; in a closed loop it
    varies between 0.5 and 1.5 times the mean, so that users do not stay synchronized. `request_s`: part of this time in
    which a request occupies the server's event loop, so that simultaneous requests queue; `template_s`: like
    `request_s`, for requests with a chat template (0: same value)."""

    seconds: float
    request_s: float
    template_s: float = 0.0


class Doubt(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Additional log errors of the engine's predictions: by metric under a sustained load (plus `arrivals` for every
    metric), for fixed `batches` (plus `unnamed` if a row names no engine), for experts in `mxfp4`, and for models with
    latent attention (`latents`)."""

    ttft: float
    tpot: float
    itl: float
    e2el: float
    tokens: float
    max: float
    memory: float = 0.0
    batches: float = 0.0
    unnamed: float = 0.0
    arrivals: float = 0.0
    mxfp4: float = 0.0
    latents: float = 0.0


class EngineRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All groups of figures for one release of an engine."""

    schedule: Schedule
    room: Room
    host: HostShares
    launches: Launches
    kernels: EngineKernels
    memory: Outside
    front_end: FrontEnd
    doubt: Doubt


class _Found(NamedTuple):
    """The figures of one engine. `own`: the figures of its release; `rules`: those of the release whose scheduling
    rules apply; `first`: whether prompts take precedence."""

    own: EngineRelease
    rules: EngineRelease
    first: bool


class Engines:
    """The engines of n configurations. `of`: (n,) index into the distinct engines `found`."""

    def __init__(self, found: list[_Found], of: np.ndarray) -> None:
        self.found, self.of = found, of

    def own(self, figure: Callable[[EngineRelease], Any]) -> np.ndarray:
        """(n,) a figure of each configuration's release."""
        return np.array([figure(one.own) for one in self.found])[self.of]

    def rules(self, figure: Callable[[EngineRelease], Any]) -> np.ndarray:
        """(n,) a figure of the release whose scheduling rules apply to each configuration."""
        return np.array([figure(one.rules) for one in self.found])[self.of]

    @property
    def first(self) -> np.ndarray:
        return np.array([one.first for one in self.found])[self.of]


def engines_of(columns: Mapping[str, Any], n: int) -> Engines:
    """The engines of n configurations, by the columns `framework` and `version`. If `scheduler_v0` is set or
    `scheduler_steps` > 1, prompts take precedence, by the rules of the family's nearest release with such a scheduler;
    with `chunked_prefill`, that scheduler mixes prompts and decodes, too. `batch` > 0: a fixed batch, which may follow
    the rules of another release (`Family.batches_like`).

    Errors: AutoscoutError (exit 2) for a record that lacks a group or contains an unknown key."""

    def column(name: str, default: Any) -> np.ndarray:
        given = np.asarray(columns.get(name, default))
        return given if given.dtype.kind == np.asarray(default).dtype.kind else np.asarray(default)

    def over(name: str, least: float) -> np.ndarray:
        """1 where the column's value exceeds `least`; -1 where it is missing; 0 elsewhere."""
        given = np.asarray(columns.get(name, np.nan))
        values = given.astype(float) if given.dtype.kind in "biuf" else np.full(given.shape, np.nan)
        return np.where(np.isnan(values), -1, values > least)

    steps = over("scheduler_steps", 1)
    first = np.where(over("scheduler_v0", 0) < 0, np.where(steps > 0, 1, -1), over("scheduler_v0", 0))
    keys = [
        column("framework", "").astype(str),
        column("version", "").astype(str),
        first,
        over("chunked_prefill", 0) > 0,
        over("batch", 0) > 0,
    ]
    if all(key.size == 1 for key in keys):
        return Engines([_found(*(key.reshape(-1)[0].item() for key in keys))], np.zeros(n, dtype=int))
    coded = [np.unique(np.broadcast_to(key, (n,)), return_inverse=True) for key in keys]
    each, of = np.unique(np.array([codes for _, codes in coded]), axis=1, return_inverse=True)
    found = [
        _found(*(values[code].item() for (values, _), code in zip(coded, one, strict=True))) for one in each.T.tolist()
    ]
    return Engines(found, np.asarray(of).reshape(-1))


def family(framework: str) -> Family:
    """The record of a framework by any of its names; for an unknown or missing name, the fallback record."""
    if not framework:
        return standing_for("unnamed", "serve")
    return family_of(framework, "serve") or standing_for("undescribed", "serve")


def version_of(framework: str, version: str) -> Version | None:
    """The release in the text `version`, or if that is empty, in `framework` ("vLLM 0.9"); None if the text has no
    number."""
    return release_of(version) if version else release_of(framework)


def strange_releases(columns: Mapping[str, Any], n: int) -> np.ndarray:
    """(n,) a sentence that the stated release is unknown, and which release is assumed instead; or ""."""
    pairs = [np.asarray(columns.get(name, ""), dtype=str) for name in ("framework", "version")]
    if all(each.size == 1 for each in pairs):
        return np.full(n, _strange(*(str(each.reshape(-1)[0]) for each in pairs)), dtype=object)
    names, versions = (np.broadcast_to(each, (n,)).tolist() for each in pairs)
    return np.array([_strange(name, version) for name, version in zip(names, versions, strict=True)], dtype=object)


@cache
def _strange(framework: str, version: str) -> str:
    known, release = family(framework), version_of(framework, version)
    if not version or known.read_until == NEWEST:
        return ""
    last = ".".join(map(str, known.read_until))
    if release is None:
        return f"release '{version}' of {known.name} is not known; its newest known release, {last}, is used"
    if release[: len(known.read_until)] <= known.read_until:
        return ""
    return f"{known.name} {'.'.join(map(str, release))} is newer than {last}, its last known release, which is used"


@cache
def _found(framework: str, version: str, first: int, cut: bool, offline: bool) -> _Found:
    named = family(framework)
    release = version_of(framework, version)
    own = _row(named, release, first)
    rules = own
    if offline and named.batches_like:
        other, _, at = named.batches_like.partition(" ")
        named, release = families()[other], release_of(at)
        rules = _row(named, release, first)
    goes_first = bool(first) if first >= 0 else rules.schedule.prompts_first
    if goes_first and cut and rules.schedule.cuts_mix:
        rules = _row(named, None, 0)
    return _Found(own, rules, goes_first)


def _row(named: Family, release: Version | None, first: int) -> EngineRelease:
    """The figures that apply to a release. `first` is 1 to prefer the nearest release in which prompts take precedence,
    0 to prefer one in which they do not, and -1 for no preference."""
    own = served(named, named.at(release or NEWEST))
    if first < 0 or own.schedule.prompts_first == bool(first):
        return own
    alike = [one for one in (served(named, row) for row in named.rows) if one.schedule.prompts_first == bool(first)]
    if not alike:
        return own
    return alike[-1] if release or not first else alike[0]


@cache
def _served(stem: str, since: Version) -> EngineRelease:
    named = families()[stem]
    groups = {name: group for name, group in named.at(since).groups.items() if name in EngineRelease.__struct_fields__}
    try:
        return msgspec.convert(groups, EngineRelease)
    except msgspec.ValidationError as e:
        at = ".".join(map(str, since))
        raise AutoscoutError(f"{folder().name}/{stem}.toml: the release since {at}: {e}", 2) from None


def served(named: Family, row: ReleaseRow) -> EngineRelease:
    return _served(named.stem, row.since)


def by_memory(steps: Steps, gib: float) -> float:
    """The value for a device with `gib` GiB of memory, taken from the last step that starts at or below this size."""
    return next((value for least, value in reversed(steps) if gib >= least), steps[0][1])
