"""FlexLLMGen's cost model of offloaded generation: seconds and memory of a policy, and the policy that its linear
program finds for a batch. Written from the formulas of its experimental/cost_model.py; its constants are those of a
T4 there.

A policy places shares of the weights (w), the KV cache (c) and the activations (h) on GPU, CPU and disk, and generates
for `batches` GPU batches of `batch` prompts together. Everything is affine in the nine shares, so the same formulas
give a policy's cost and, probed at the unit vectors, the coefficients of the linear program. Half precision, bytes,
seconds. Nothing here was measured by us.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

GB = 2**30
TERA = 1e12
SHARES: tuple[str, ...] = ("wg", "wc", "wd", "cg", "cc", "cd", "hg", "hc", "hd")  # on GPU, CPU, disk
ERROR = 0.5  # of log(predicted): fitted to one machine, and not checked on any other here
_USED = 0.8  # usable share of each memory; the rest is not modelled


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in bytes; bytes/s between GPU (g), CPU (c) and disk (d); FLOP/s of prefill (p) and generation (g)."""

    gpu: float
    cpu: float = 204 * GB
    disk: float = 1500 * GB
    cpu_to_gpu: float = 12.89 * GB
    gpu_to_cpu_cache: float = 0.97 * GB
    gpu_to_cpu_hidden: float = 4.82 * GB
    disk_to_cpu: float = 0.473 * GB
    cpu_to_disk_cache: float = 0.746 * GB
    cpu_to_disk_hidden: float = 2.015 * GB
    cpu_to_disk: float = 2.015 * GB
    matmul_p: float = 21.24 * TERA
    matmul_g: float = 4.3 * TERA
    batched_p: float = 9.97 * TERA
    batched_g: float = 0.079 * TERA
    cpu_flops: float = 0.0123 * TERA


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """`prompt` tokens in, `tokens` out, through `layers` of `hidden`, `ffn` and `heads`."""

    prompt: int
    tokens: int
    layers: int
    hidden: int
    ffn: int
    heads: int


class Forms(NamedTuple):
    """Affine in the shares: lower bounds on a layer's seconds in prefill and per generated token, and bytes in use at
    the worst moments."""

    prefill: list[Any]
    token: list[Any]
    gpu: list[Any]
    cpu: list[Any]
    disk: list[Any]


def forms(g: Generation, m: Machine, batch: Any, batches: Any, share: Mapping[str, Any], weight: Any = 1.0) -> Forms:
    """`weight`: bytes of a weight as a share of half precision's (0.25: in 4 bits). Arrays (n,) or numbers."""
    s, n, h1, h2 = g.prompt, g.tokens, g.hidden, g.ffn
    block = batch * batches
    wi = (8 * h1**2 + 4 * h1 * h2) * weight
    hidden, cache = 2 * h1 * block, 4 * h1 * block  # of one token
    wg, wc, wd = share["wg"], share["wc"], share["wd"]
    off_gpu_h, off_gpu_c = share["hc"] + share["hd"], share["cc"] + share["cd"]
    up_p = (wi * (wc + wd) + s * hidden * off_gpu_h) / m.cpu_to_gpu
    down_p = (s + 1) * cache * off_gpu_c / m.gpu_to_cpu_cache + s * hidden * off_gpu_h / m.gpu_to_cpu_hidden
    read_p = (wi * wd + s * hidden * share["hd"]) / m.disk_to_cpu
    written_p = (s + 1) * cache * share["cd"] / m.cpu_to_disk_cache + s * hidden * share["hd"] / m.cpu_to_disk_hidden
    computed_p = block * (8 * s * h1**2 + 4 * s * h1 * h2) / m.matmul_p + 4 * block * s**2 * h1 / m.batched_p
    up = (wi * (wc + wd) + hidden * off_gpu_h) / m.cpu_to_gpu
    down = hidden * off_gpu_h / m.gpu_to_cpu_hidden
    seen = s + n / 2
    read = (seen * cache * share["cd"] + hidden * share["hd"]) / m.disk_to_cpu + wi * wd / (0.95 * m.disk_to_cpu)
    written = (cache * share["cd"] + hidden * share["hd"]) / m.cpu_to_disk
    computed = (
        block * (8 * h1**2 + 4 * h1 * h2) / m.matmul_g
        + seen * cache * share["cg"] / m.batched_g
        + seen * cache * off_gpu_c / _cpu_flops(m, batch, h1)
    )
    whole, heads = (s + n) * cache * g.layers, g.heads
    work_p = batch * (20 * s * h1 + 2 * heads * s**2 + 2 * s * h2)
    work = batch * (14 * h1 + 2 * h2) + batch * share["cg"] * (4 * h1 + 4 * (s + n) * h1 + 2 * heads * (s + n))
    weights, copies = wi * g.layers, 2 * wi * (1 - wg)
    gpu_p = weights * wg + s * hidden * share["hg"] + whole * share["cg"] + copies
    gpu_p = gpu_p + 2 * s * h1 * batch * (1 - share["hg"]) + work_p
    gpu = weights * wg + hidden * share["hg"] + whole * share["cg"] + copies + 2 * h1 * batch * (1 - share["hg"])
    gpu = gpu + 4 * batch * (s + n) * h1 * share["cg"] + work
    cpu_p = weights * wc + s * hidden * share["hc"] + s * cache * g.layers * share["cc"]
    cpu_p = cpu_p + wi * (1 - wg) + 2 * s * h1 * batch * (1 - share["hg"])
    cpu = weights * wc + hidden * share["hc"] + whole * share["cc"] + wi * wd + 4 * h1 * batch * share["hd"]
    cpu = cpu + 8 * (s + n) * h1 * batch * share["cd"] + 2 * heads * (s + n) * batch + 2 * h1 * batch
    disk = weights * wd + s * hidden * share["hd"] + whole * share["cd"]
    return Forms(
        prefill=[up_p + read_p, down_p + written_p, computed_p],
        token=[up + down, up + read, up + written, up + computed],
        gpu=[gpu_p, gpu],
        cpu=[cpu_p, cpu],
        disk=[disk],
    )


def evaluate(g: Generation, m: Machine, batch: Any, batches: Any, share: Mapping[str, Any], weight: Any = 1.0):
    """Metrics of policies: tokens/s, seconds of the whole block, GiB of each memory, and `fits`."""
    found = forms(g, m, batch, batches, share, weight)
    prefill = _most(found.prefill) * g.layers
    generating = _most(found.token) * g.layers * (g.tokens - 1)
    seconds = prefill + generating
    used = {name: _most(getattr(found, name)) for name in ("gpu", "cpu", "disk")}
    fits = np.all([used[name] <= (1 + 1e-6) * _USED * getattr(m, name) for name in used], axis=0)
    return {
        "output_tokens_per_s": batch * batches * g.tokens / seconds,
        "prefill_s": prefill,
        "block_s": seconds,
        "fits": fits,
        **{f"{name}_gib": value / GB for name, value in used.items()},
    }


def solve(g: Generation, m: Machine, batch: int, batches: int, weight: float = 1.0) -> dict[str, float] | None:
    """The shares of the fastest policy of a block by the linear program, activations not on disk (its runtime cannot);
    None if none fits. Eleven variables: the shares, and seconds of a layer's prefill and of its token."""
    from scipy.optimize import linprog

    def at(share: Mapping[str, float]) -> Forms:
        return forms(g, m, batch, batches, share, weight)

    zero: dict[str, float] = dict.fromkeys(SHARES, 0.0)
    base, units = at(zero), [at({**zero, str(name): 1.0}) for name in SHARES]

    def row(get, seconds: tuple[float, float], limit: float, scale: float) -> tuple[list[float], float]:
        constant = float(get(base))
        coefficients = [(float(get(unit)) - constant) / scale for unit in units]
        return [*coefficients, *seconds], (limit - constant) / scale

    rows = [row(lambda f, i=i: f.prefill[i], (-1.0, 0.0), 0.0, 1.0) for i in range(3)]
    rows += [row(lambda f, i=i: f.token[i], (0.0, -1.0), 0.0, 1.0) for i in range(4)]
    for name in ("gpu", "cpu", "disk"):
        for i in range(len(getattr(base, name))):
            rows.append(row(lambda f, n=name, i=i: getattr(f, n)[i], (0.0, 0.0), _USED * getattr(m, name), GB))
    sums = [[float(s[0] == kind) for s in SHARES] + [0.0, 0.0] for kind in "wch"]
    bounds = [(0.0, 0.0 if name == "hd" else 1.0) for name in SHARES] + [(0.0, None)] * 2
    objective = [0.0] * len(SHARES) + [float(g.layers), float(g.layers * (g.tokens - 1))]
    found = linprog(
        objective,
        A_ub=[r[0] for r in rows],
        b_ub=[r[1] for r in rows],
        A_eq=sums,
        b_eq=[1.0] * 3,
        bounds=bounds,
        method="highs",
    )
    return {name: float(value) for name, value in zip(SHARES, found.x, strict=False)} if found.success else None


def _cpu_flops(m: Machine, batch: Any, hidden: int) -> Any:
    """FLOP/s of attention on the CPU, lower for small batches and narrow models."""
    few = np.maximum(0.0, np.log2(64 / np.asarray(batch, dtype=float)))
    narrow = max(0.0, float(np.log2(4096 / hidden)))
    return m.cpu_flops * np.maximum(0.1, 1 + 0.0168 * few * narrow - 0.0328 * few - 0.0621 * narrow)


def _most(parts: list[Any]) -> Any:
    return np.maximum.reduce(np.broadcast_arrays(*parts))
