"""Fits matrix products: the constants of gemm in simulate/hardware/roofline.py, and their speed inside layers."""

from collections.abc import Iterable

import numpy as np
from calibration_data import DEVICES, MIST_SEQ, MIST_SHAPES, Data
from scipy.optimize import least_squares

L4_IN_STEPS = """
# timed again and again, they are held back by its 72 W; in steps, between other kernels and waits, they are this much
# faster (stages of 2.6B and 6.7B models in train_end_to_end.csv.gz, less their other operators; 1.73 in those of 13B)
in_steps = 1.7"""
TILES = ((256, 128), (128, 128), (128, 64), (64, 64))


def gemm_source(isolated: str, vidur: str, mist: str) -> str:
    if isolated:
        return f"op_aiconfigurator_gemm_perf.csv.gz ({isolated}, bf16, faster of its libraries)"
    return "op_vidur_mlp.csv.gz" if vidur else f"op_mist_superscaler.csv.gz ({mist})"


def gemm_rows(data: Data, isolated: str, vidur: str, mist: str) -> np.ndarray:
    """(shapes, 4): m, n, k, seconds. Only sizes of training: each at least 256."""
    best: dict[tuple[float, float, float], float] = {}
    if isolated:
        rows = data.read("op_aiconfigurator_gemm_perf.csv.gz")
        points = (
            (float(r["m"]), float(r["n"]), float(r["k"]), float(r["latency"]) / 1e3)
            for r in rows
            if r["gpu"] == isolated and r["gemm_dtype"] == "bfloat16"
        )
    elif vidur:
        points = vidur_products(data, vidur)
    else:
        points = mist_products(data, mist)
    for m, n, k, seconds in points:
        if min(m, n, k) >= 256:
            best[m, n, k] = min(best.get((m, n, k), np.inf), seconds)
    return np.array([[*shape, seconds] for shape, seconds in best.items()])


def vidur_products(data: Data, gpu: str) -> Iterable[tuple[float, float, float, float]]:
    for r in data.read("op_vidur_mlp.csv.gz"):
        if r["gpu"] != gpu or float(r["num_tokens"]) < 512:
            continue
        tokens, h, tp = float(r["num_tokens"]), float(r["hidden"]), float(r["tp"])
        dim = h / float(r["heads"])
        wide = 2.0 if r["use_gated_mlp"] == "True" else 1.0
        ffn = float(r["ffn"])
        yield tokens, (float(r["heads"]) + 2 * float(r["kv_heads"])) * dim / tp, h, float(r["attn_pre_proj_ms"]) / 1e3
        yield tokens, h, h / tp, float(r["attn_post_proj_ms"]) / 1e3
        yield tokens, wide * ffn / tp, h, float(r["mlp_up_proj_ms"]) / 1e3
        yield tokens, h, ffn / tp, float(r["mlp_down_proj_ms"]) / 1e3


def mist_products(data: Data, gpu: str) -> Iterable[tuple[float, float, float, float]]:
    """Forward products without tensor parallelism (with it, times include communication)."""
    outputs = {
        "enc-attention-qkv": (3, 1),
        "enc-attention-dense": (1, 1),
        "enc-MLP-GEMM-1": (4, 1),
        "enc-MLP-GEMM-2": (1, 4),
    }
    for r in data.read("op_mist_superscaler.csv.gz"):
        if (
            r["gpu"] == gpu
            and r["tp"] == "1"
            and r["algo"] == "0"
            and r["op_name"] in outputs
            and r["model"] in MIST_SHAPES
        ):
            h = MIST_SHAPES[r["model"]]
            n, k = outputs[r["op_name"]]
            yield float(r["micro_batch"]) * MIST_SEQ[gpu], n * h, k * h, float(r["forward-compute"]) / 1e6


def gemm_seconds(p: np.ndarray, rows: np.ndarray, peak: float, bandwidth: float, sms: int) -> np.ndarray:
    """Seconds by the formula of simulate/hardware/roofline.py. `p`: logs of overhead, share of bandwidth, extra k,
    efficiencies."""
    overhead, share, extra, *efficiency = np.exp(p)
    m, n, k = rows[:, 0], rows[:, 1], rows[:, 2]
    compute = np.full(len(rows), np.inf)
    for (r, c), e in zip(TILES, efficiency, strict=True):
        tiles = np.minimum(np.ceil(m / r) * np.ceil(n / c), np.ceil(m / c) * np.ceil(n / r))
        compute = np.minimum(compute, np.ceil(tiles / sms) * 2 * r * c * (k + extra) * sms / (peak * 1e12 * e))
    memory = 2 * (m * n + n * k + m * k) / (bandwidth * 1e9 * share)
    return overhead + np.maximum(compute, memory)


def fit_gemm(rows: np.ndarray, peak: float, bandwidth: float, sms: int) -> tuple[dict, float]:
    target = np.log(rows[:, 3])
    start = np.log([4e-6, 0.8, 150, 0.9, 0.85, 0.75, 0.7])
    low = np.log([1e-6, 0.4, 1, 0.3, 0.3, 0.3, 0.3])
    high = np.log([2e-5, 0.95, 400, 0.98, 0.95, 0.9, 0.85])
    found = least_squares(
        lambda p: np.log(gemm_seconds(p, rows, peak, bandwidth, sms)) - target,
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=0.1,
    )
    overhead, share, extra, *efficiency = np.exp(found.x)
    tiles = [(r, c, e) for (r, c), e in zip(TILES, efficiency, strict=True)]
    error = np.abs(gemm_seconds(found.x, rows, peak, bandwidth, sms) / rows[:, 3] - 1).mean()
    constants = {"overhead_us": round(1e6 * overhead, 2), "bandwidth": round(share, 3), "extra_k": round(extra, 1)}
    return {**constants, "tiles": tiles}, float(error)


def as_logs(constants: dict) -> np.ndarray:
    efficiencies = [e for _, _, e in constants["tiles"]]
    return np.log([constants["overhead_us"] / 1e6, constants["bandwidth"], constants["extra_k"], *efficiencies])


def in_place_ratio(data: Data, device: str, p: np.ndarray) -> float:
    return float(np.mean(in_place_ratios(data, device, p)))


def in_place_ratios(data: Data, device: str, p: np.ndarray) -> list[float]:
    _, vidur, mist, peak, bandwidth, sms = DEVICES[device]
    ratios = []
    for points in ([vidur_products(data, vidur)] if vidur else []) + ([mist_products(data, mist)] if mist else []):
        rows = np.array([x for x in points if min(x[:3]) >= 1024])
        ratios.append(float(np.median(gemm_seconds(p, rows, peak, bandwidth, sms) / rows[:, 3])))
    return ratios


def in_place(data: Data, device: str, constants: dict) -> str:
    """The factor by which the power limit lowers clocks inside a model, compared to products timed alone: the median
    ratio on the same device between products timed inside layers (Vidur, Mist) and the fit above."""
    isolated, vidur, mist, *_ = DEVICES[device]
    if not isolated:
        return "# products were timed inside layers already\nsustained = 1.0" + (L4_IN_STEPS if device == "l4" else "")
    if not (vidur or mist):
        return "# no layers were timed on this device: as on A100\nsustained = 0.85"
    if device in ("h100", "h200"):
        # Vidur's ratio is 0.86, but it timed one layer for moments, and an H100 at 700 W clocks lower after minutes.
        # 0.70 follows from the four H100 rows of fms-fsdp, on which the simulators are not tested.
        return "# from four end-to-end rows (fms-fsdp, H100), which are not tested on\nsustained = 0.7"
    ratios = in_place_ratios(data, device, as_logs(constants))
    text = ", ".join(f"{r:.3f}" for r in ratios)
    return (
        f"# inside layers against one by one, median by table (Vidur, Mist): {text}\nsustained = {np.mean(ratios):.3f}"
    )
