"""Fits constants of fused attention, memory-bound kernels, and the host's time to issue an operator."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from calibration_data import BORROWED, DEVICES, Data
from scipy.optimize import least_squares


def attention_lines(data: Data, device: str, peak: float, sms: int) -> list[str]:
    name = DEVICES[device][0]
    source = name or BORROWED[device]
    peaks = {"A100-SXM-80GB": (312, 108), "H100-SXM-80GB": (989, 132), "L40S": (362, 142)}
    of, own_sms = peaks[source]
    rows = np.array(
        [
            [float(r[c]) for c in ("batch_size", "isl", "num_heads", "latency")]
            for r in data.read("op_aiconfigurator_context_attention_perf.csv.gz")
            if r["gpu"] == source and r["kernel_source"] == "vllm_flash_attn" and r["kv_cache_dtype"] == "bfloat16"
        ]
    )
    batch, length, heads = rows[:, 0], rows[:, 1], rows[:, 2]
    seconds = rows[:, 3] / 1e3
    use = (length >= 256) & (seconds > 3e-5)
    batch, length, heads, seconds = batch[use], length[use], heads[use], seconds[use]
    flops = 2 * batch * heads * length**2 * 128

    def predicted(p: np.ndarray) -> np.ndarray:
        launch, efficiency, half = np.exp(p)
        blocks = batch * heads * np.ceil(length / 128)
        fill = np.ceil(blocks / own_sms) * own_sms / blocks
        return launch + flops * fill * (1 + half / length) / (of * 1e12 * efficiency)

    found = least_squares(
        lambda p: np.log(predicted(p)) - np.log(seconds), np.log([1e-5, 0.6, 150]), loss="soft_l1", f_scale=0.1
    )
    launch, efficiency, half = np.exp(found.x)
    error = np.abs(predicted(found.x) / seconds - 1).mean()
    note = f"# {len(seconds)} rows of op_aiconfigurator_context_attention_perf.csv.gz ({source}"
    return [
        "[attention]",
        note + (f"; as a share of the peak assumed to hold here too): {error:.1%}" if not name else f"): {error:.1%}"),
        f"overhead_us = {1e6 * launch:.1f}",
        f"efficiency = {efficiency:.3f}",
        f"half_length = {half:.0f}",
        "# not measured here: FlashAttention-2 (Dao 2023), figures 4-6; FlashAttention-3 (Shah et al. 2024), figure 5",
        "backward = 0.85",
        "flash1 = 0.6" if source.startswith(("A100", "L40S")) else "flash1 = 0.35",
        "flash2 = 1.0" if source.startswith(("A100", "L40S")) else "flash2 = 0.6",
    ]


def elementwise_lines(data: Data, device: str) -> list[str]:
    """Shares of the memory bandwidth that training kernels of known traffic reach, on tensors that exceed the
    caches."""
    gpu = DEVICES[device][2] or "A100-SXM4-40GB"
    bandwidth = {"A100-SXM4-40GB": 1555, "A10G": 600, "L4": 300, "V100-SXM2-32GB": 900}[gpu]
    traffic: dict[str, tuple[str, Callable[[float, float], float]]] = {
        # operator → (share that it determines, MiB moved, from the table's sizes of input and output)
        "enc-1st-layernorm": ("norm_bandwidth", lambda _in, out: out),
        "enc-MLP-gelu": ("bandwidth", lambda wide, _out: 2 * wide),
        "enc-attention-dropout": ("bandwidth", lambda scores, _out: 2.5 * scores),
    }
    shares: dict[str, list[float]] = defaultdict(list)
    for r in data.read("op_mist_superscaler.csv.gz"):
        if r["gpu"] == gpu and r["tp"] == "1" and r["algo"] == "0" and r["op_name"] in traffic:
            kind, moved = traffic[r["op_name"]]
            mib = moved(float(r["input_size"]), float(r["output_size"]))
            if mib >= 64:
                shares[kind].append(mib * 2**20 / (float(r["forward-compute"]) * 1e-6) / (bandwidth * 1e9))
    return [
        "[elementwise]",
        f"# medians over op_mist_superscaler.csv.gz ({gpu})" + ("" if DEVICES[device][2] else ", assumed to hold here"),
        "overhead_us = 3.0",
        *(f"{kind} = {np.median(shares[kind]):.3f}" for kind in ("bandwidth", "norm_bandwidth")),
    ]


def host_lines(data: Data) -> list[str]:
    """CPU time of PyTorch and Megatron per operator when the device is not the bottleneck: the median over operators of
    the shortest time on any device and with any size, which depends on neither."""
    lines = [
        "[host]",
        "# least times per operator over all devices and sizes of op_mist_superscaler.csv.gz, median over operators",
    ]
    communicates = {
        "forward-compute": ("dense", "GEMM-2", "embedding", "post-process"),
        "backward-compute": ("qkv", "GEMM-1", "embedding", "post-process", "final"),
    }
    for column, key in (("forward-compute", "forward_us"), ("backward-compute", "backward_us")):
        least: dict[str, float] = {}
        for r in data.read("op_mist_superscaler.csv.gz"):
            if r["algo"] == "0" and not any(word in r["op_name"] for word in communicates[column]):
                least[r["op_name"]] = min(least.get(r["op_name"], np.inf), float(r[column]))
        lines.append(f"{key} = {np.median(list(least.values())):.0f}")
    small = [
        float(r["median_ms"])
        for r in data.read("comm_vidur.csv.gz")
        if r["topology"] == "a100" and r["collective"] == "all_reduce" and float(r["size_bytes"]) < 2**16
    ]
    return [
        *lines,
        "# median of all-reduces below 64 KiB, timed from Python (comm_vidur.csv.gz, A100)",
        f"collective_us = {1e3 * np.median(small):.0f}",
        "step_ms = 3  # data loader, clipping, logging; not measured",
    ]
