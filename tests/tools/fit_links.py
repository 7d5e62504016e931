"""Fits collectives inside a node: latency and bus bandwidth by group size, and additional latency inside a layer."""

from collections import defaultdict

import numpy as np
from calibration_data import DEVICES, MIST_SEQ, MIST_SHAPES, Data
from fit_products import as_logs, fit_gemm, gemm_rows, gemm_seconds, in_place_ratio
from scipy.optimize import least_squares

from autoscout.job.device_records import shipped_contents


def link_lines(data: Data, device: str) -> list[str]:
    name, vidur, mist, *_ = DEVICES[device]
    if name and device != "a100-pcie":
        points, source = nccl_points(data, name), f"op_aiconfigurator_nccl_perf.csv.gz ({name})"
        if vidur:
            points["send", 2] = vidur_sends(data, vidur)
    elif mist in ("A10G", "L4", "V100-SXM2-32GB"):
        points, source = mist_points(data, mist), f"comm_aceso_mist_prims.csv.gz ({mist})"
    else:
        points, source = vidur_points(data), "comm_vidur.csv.gz (A40 with NVLink pairs); the others from all-reduce"
    lines, errors = [], []
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        latency, bus = [], []
        for ranks in (2, 4, 8):
            own = (kind, ranks) in points
            a, b, error = fit_line(points[(kind if own else "all_reduce"), ranks])
            latency.append(round(1e6 * a * (1.0 if own else 0.5), 1))  # half of an all-reduce
            bus.append(round(b / 1e9, 2))
            errors.append(error)
        lines.append(f"{kind} = {{ latency_us = {latency}, bus_gb_s = {bus} }}")
    # If no sends were timed, the all-to-all of two ranks is used instead.
    a, b, _ = fit_line(points["send", 2] if ("send", 2) in points else points["all_to_all", 2])
    lines.append(f"send = {{ latency_us = [{1e6 * a:.1f}], bus_gb_s = [{b / 1e9:.2f}] }}")
    lines.append("# more inside layers: op_mist_superscaler.csv.gz, row-parallel products with tensor parallelism")
    lines.append(f"inside_us = {inside_us(data, device)}")
    kind = shipped_contents()[device]["island"]["kind"]
    return ["[island]", f"# {source}: {np.mean(errors):.1%}", f'kind = "{kind}"', "ranks = [2, 4, 8]", *lines]


def inside_us(data: Data, device: str) -> list[float]:
    """Additional latency of an all-reduce inside a layer, where ranks arrive at different times and the next product
    waits for the last. Fitted to the difference of row-parallel products with and without tensor parallelism (Mist):
    seconds = latency + bytes / bandwidth by group size, minus the latency of the collective alone."""
    gpu, of = ("V100-SXM2-32GB", "v100") if device == "v100" else ("A100-SXM4-40GB", "a100-40g")
    isolated, _, mist, peak, bandwidth, sms = DEVICES[of]
    constants, _ = fit_gemm(gemm_rows(data, isolated, "", mist), peak, bandwidth, sms)
    p = as_logs(constants)
    slower = in_place_ratio(data, of, p) if isolated else 1.0
    alone = nccl_points(data, isolated) if isolated else mist_points(data, mist)
    extra = []
    for tp in (2, 4, 8):
        points = []
        for r in data.read("op_mist_superscaler.csv.gz"):
            inner = {"enc-attention-dense": 1, "enc-MLP-GEMM-2": 4}.get(r["op_name"])
            if inner and r["gpu"] == gpu and r["tp"] == str(tp) and r["algo"] == "0" and r["model"] in MIST_SHAPES:
                h, tokens = MIST_SHAPES[r["model"]], MIST_SEQ[gpu] * float(r["micro_batch"])
                product = gemm_seconds(p, np.array([[tokens, h, inner * h / tp, 0]]), peak, bandwidth, sms)[0] / slower
                rest = float(r["forward-compute"]) / 1e6 - product
                if rest > 0:
                    points.append((2 * (tp - 1) / tp * 2 * tokens * h, rest))
        extra.append(round(max(1e6 * (fit_line(points)[0] - fit_line(alone["all_reduce", tp])[0]), 0.0), 1))
    return extra


def vidur_sends(data: Data, gpu: str) -> list[tuple[float, float]]:
    return [
        (float(r["size_bytes"]), float(r["median_ms"]) / 1e3)
        for r in data.read("comm_vidur.csv.gz")
        if r["gpu"] == gpu
        and (
            r["collective"] == "p2p_intra_node"
            or (r["topology"] == "h100_dgx" and r["collective"] == "send_recv" and r["devices_per_node"] == "2.0")
        )
    ]


def nccl_points(data: Data, gpu: str) -> dict:
    """{(collective, ranks): [(bytes moved per rank, seconds)]}. The table counts 2-byte elements."""
    points = defaultdict(list)
    names = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "alltoall": 1}
    for r in data.read("op_aiconfigurator_nccl_perf.csv.gz"):
        if r["gpu"] == gpu and r["nccl_dtype"] == "half":
            n = int(r["num_gpus"])
            moved = names[r["op_name"]] * (n - 1) / n * 2 * float(r["message_size"])
            kind = "all_to_all" if r["op_name"] == "alltoall" else r["op_name"]
            points[kind, n].append((moved, float(r["latency"]) / 1e3))
    return points


def mist_points(data: Data, gpu: str) -> dict:
    points = defaultdict(list)
    passes = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_to_all": 1}
    for r in data.read("comm_aceso_mist_prims.csv.gz"):
        value, size = float(r["time_ms_or_bw"]), float(r["size_mb"])
        if r["gpu"] != gpu or value <= 0 or size <= 0:
            continue
        if r["collective"].startswith("p2p_intra"):
            points["send", 2].append((size * 2**20, size * 2**20 / (value * 1e9)))
        elif r["collective"] in passes and r["set"] in ("a10g", "l4", "v100-sxm2-32gb-seq2048"):
            n = int(r["n_gpus"])
            # the table counts the bytes of one rank's input
            whole = size * n if r["collective"] == "all_gather" else size
            points[r["collective"], n].append((passes[r["collective"]] * (n - 1) / n * whole * 2**20, value / 1e3))
    return points


def vidur_points(data: Data) -> dict:
    """Points of one machine only, whose `source_ref`s are listed in ../shared/data/PROVENANCE.md."""
    points = defaultdict(list)
    machine = ("64804b56b2", "c8245bbc42")
    for r in data.read("comm_vidur.csv.gz"):
        if r["gpu"] == "A40" and r["source_ref"].endswith(machine):
            n, seconds = int(r["num_workers"]), float(r["median_ms"]) / 1e3
            if r["collective"] == "all_reduce":
                points["all_reduce", n].append((2 * (n - 1) / n * float(r["size_bytes"]), seconds))
            else:
                points["send", 2].append((float(r["size_bytes"]), seconds))
    return points


def fit_line(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """(latency, bus bandwidth, error) of seconds = latency + bytes / bandwidth, in log space, for messages of at least
    256 KiB: smaller ones hardly matter in training and use other protocols."""
    moved, seconds = np.array([p for p in points if p[0] >= 2**18]).T

    def predicted(p: np.ndarray) -> np.ndarray:
        return np.exp(p[0]) + moved / np.exp(p[1])

    start = [np.log(1e-5), np.log(np.max(moved / seconds))]
    bounds = (np.log([1e-6, 1e8]), np.log([1e-3, 1e12]))
    found = least_squares(
        lambda p: np.log(predicted(p)) - np.log(seconds), start, bounds=bounds, loss="soft_l1", f_scale=0.1
    )
    return float(np.exp(found.x[0])), float(np.exp(found.x[1])), float(np.abs(predicted(found.x) / seconds - 1).mean())
