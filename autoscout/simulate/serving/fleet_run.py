"""Runs the simulation of a configuration's whole fleet: engines behind a router (knob `router`), and engines that read
prompts for the others (knob `prefill`; Zhong et al. 2024, "DistServe"). docs/lab/simulators-serving.md compares the
latter with nine runs measured by dstack.

A single engine with conversations, or with prompts that share blocks, is a fleet of one."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from autoscout.job.requests import of_traffic
from autoscout.job.trace import HASHED
from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.serving.engine_run import EngineRun, step_times
from autoscout.simulate.serving.engine_shapes import EngineShapes, numbers, switches
from autoscout.simulate.serving.one_replica import engine_of, limits_of, requests_of
from autoscout.simulate.serving.router_policies import policy_of, routers
from autoscout.simulate.serving.serving_device import ServingDevice
from autoscout.simulate.serving.serving_fleet import EngineGroup, FleetLoad, simulate_fleet
from autoscout.simulate.serving.setup import Setup, setup
from kb.records import Traffic

ERROR = 0.2  # additional log error of separate prefill engines; assumed
# Additional log error of a KV cache in files; assumed. One drive stands for unknown storage, and vLLM
# reads the files of one request one after another, which most drives do more slowly than many at once.
FILES_ERROR = 0.3
_LOADS: dict[str, FleetLoad] = {}  # cache by traffic
_MOST_LOADS = 8  # limit of this cache


def apart(columns: Mapping[str, Any], n: int) -> np.ndarray:
    """(n,) whether a configuration has separate engines for prompts."""
    return np.broadcast_to(np.nan_to_num(np.asarray(columns.get("prefill", 0), dtype=float)) > 0, (n,))


def on_disk(columns: Mapping[str, Any], n: int) -> np.ndarray:
    """(n,) whether a configuration has a tier of the KV cache in files, which is below the one in the host's memory."""
    below = numbers(columns, "kv_offload", 0.0, n) > 0
    return switches(columns, "kv_disk", False, n) & below & ~apart(columns, n)


def continues(traffic: Any) -> bool:
    """Whether the requests of a load share more than one common beginning."""
    return isinstance(traffic, Traffic) and (traffic.sessions is not None or traffic.trace.endswith(HASHED))


class Fleets:
    """The fleets of n configurations on one kind of device. `whole`: (n,) which have to be simulated as a whole."""

    def __init__(self, columns: Mapping[str, Any], s: Setup) -> None:
        n = len(s.replicas)
        self.columns, self.setup = columns, s
        self.apart = apart(columns, n)
        self.whole = self.apart | continues(columns.get("traffic")) | ("router" in columns)
        self._routers = routers(columns, n)
        self._offload = numbers(columns, "kv_offload", 0.0, n)
        self._on_disk = on_disk(columns, n)

    @cached_property
    def _readers(self) -> Setup:
        return readers(self.columns, self.setup.engine.device, len(self.setup.replicas))

    def run(self, i: int, load: FleetLoad | None = None) -> EngineRun | None:
        """The run of configuration i; None if no request fits. `load`: the requests, if not the columns' own."""
        s = self.setup
        load = load or _load(self.columns.get("traffic"), s, i)
        e, limits = engine_of(s, i), limits_of(s, i)
        longest = 0 if limits.chunked else int((load.requests.input_len + load.requests.output_len).max())
        if limits.kv_tokens < int((load.requests.input_len + load.requests.output_len).min()):
            return None
        count, times = max(int(s.replicas[i]), 1), step_times(e, limits, longest)
        groups = [EngineGroup(count, "both", times, limits, tiers=self._tiers(i, e))]
        if self.apart[i]:
            reading = self._readers.of(np.array([i]))
            of_readers = limits_of(reading, 0)
            if of_readers.kv_tokens < int(load.requests.input_len.min()) + 1:
                return None
            own = step_times(reading.engine, of_readers, longest)
            groups = [
                EngineGroup(max(int(reading.replicas[0]), 1), "reads", own, of_readers),
                EngineGroup(count, "answers", times, limits, link_of(reading.engine)),
            ]
        return simulate_fleet(groups, policy_of(self._routers[i]), load, float(s.front_end_s[i] + s.request_s[i]))

    def _tiers(self, i: int, e: EngineShapes) -> list[tuple[int, float]]:
        """`tiers` of the EngineGroup. vLLM counts the host's memory over all tensor parallel ranks of an engine. Each
        rank has its own link to it, but all read the same storage. Files have no limit on their size."""
        each, hw = float(e.kv_bytes[0] * e.layers[0]), hardware(e.device.name)
        assert hw is not None
        whole = each * float(e.tp[0])
        host = (int(float(self._offload[i]) * 2**30 / whole), each / (1e9 * hw.host_gb_s))
        files = (sys.maxsize, whole / (1e9 * hw.storage_gb_s))
        return [host, files] if self._on_disk[i] else [host]


def link_of(e: EngineShapes) -> tuple[float, float]:
    """`link_s` of one configuration."""
    once, each = link_s(e)
    return once, float(each[0])


def readers(columns: Mapping[str, Any], device: ServingDevice, n: int) -> Setup:
    """The engines of n configurations that only read prompts."""
    ranks, size = (np.asarray(columns.get(name, 1), dtype=float) for name in ("prefill", "prefill_tp"))
    size = np.where(size > 0, size, 1.0)
    return setup({**columns, "tp": size, "dp": ranks / size, "pp": 1.0}, device, n)


def _load(traffic: Any, s: Setup, i: int) -> FleetLoad:
    if isinstance(traffic, Traffic):
        return load_of_traffic(traffic)
    return FleetLoad(requests_of(None, replace(s, replicas=np.ones_like(s.replicas)), i))


def load_of_traffic(traffic: Traffic) -> FleetLoad:
    key = str(traffic)
    if key not in _LOADS:
        if len(_LOADS) >= _MOST_LOADS:
            _LOADS.clear()
        _LOADS[key] = FleetLoad(of_traffic(traffic), traffic.sessions.think_s if traffic.sessions else 0.0)
    return _LOADS[key]


def link_s(e: EngineShapes) -> tuple[float, np.ndarray]:
    """(latency in seconds, (n,) seconds per token) of sending a KV cache to another engine of the node. All devices of
    an engine send concurrently."""
    hw = hardware(e.device.name)
    assert hw is not None  # a ServingDevice always has a hardware file
    send = hw.island.send
    return float(1e-6 * send.latency_us[0]), e.kv_bytes * e.layers / (1e9 * send.bus_gb_s[0])
