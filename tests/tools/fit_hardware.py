"""Fits the constants of fixtures/hardware/*.toml from measurements of kernels and collectives.

    python tests/tools/fit_hardware.py [--data ../shared/data/calibration] [--write]

Reads the calibration tables in place and prints, per device, the fitted part of its file with the error of every fit;
--write replaces what stands below the line "# fitted" of each file. It never opens the tables that the simulators are
tested on (validation/*, landscapes/*): single operators and collectives go in, end-to-end times are predicted.
What no table measures for a device is taken from the nearest one that it does, and says so.
"""

import argparse
import csv
import gzip
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

FOLDER = Path(__file__).parents[2] / "fixtures" / "hardware"
MARK = "# fitted by tests/tools/fit_hardware.py; errors are mean absolute percentages on the rows fitted\n"
TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
Rows = list[dict[str, str]]

# device file: (name in the GEMM and NCCL tables, in Vidur's, in Mist's, peak TFLOP/s, GB/s, multiprocessors)
DEVICES = {
    "a100-80-sxm": ("A100-SXM-80GB", "A100-SXM-80GB", "A100-SXM4-40GB", 312, 2039, 108),
    "a100-40-sxm": ("A100-SXM-80GB", "A100-SXM-80GB", "A100-SXM4-40GB", 312, 1555, 108),
    "a100-80-pcie": ("A100-SXM-80GB", "A100-SXM-80GB", "A100-SXM4-40GB", 312, 1935, 108),
    "h100": ("H100-SXM-80GB", "H100-SXM-80GB", "", 989, 3350, 132),
    "h200": ("H100-SXM-80GB", "H100-SXM-80GB", "", 989, 4800, 132),
    "l40s": ("L40S", "", "", 362, 864, 142),
    "a40": ("", "A40", "", 149.7, 696, 84),
    "a10g": ("", "", "A10G", 70, 600, 80),
    "l4": ("", "", "L4", 121, 300, 58),
    "v100": ("", "", "V100-SXM2-32GB", 125, 900, 80),
}
BORROWED = {  # what a device has no table for: (device whose tables are used instead)
    "a40": "A100-SXM-80GB",
    "a10g": "A100-SXM-80GB",
    "l4": "L40S",  # of its generation
    "v100": "A100-SXM-80GB",
}
# No table has these: all constants are those of the device named, links as many times faster as the data sheets say.
ASSUMED = {"b200": ("h100", 2.0), "gb200": ("h100", 2.0), "b300": ("h100", 2.0), "gb300": ("h100", 2.0)}
MIST_SHAPES = {"gpt_1_3B": 2048, "gpt_2_6B": 2560, "gpt_6_7B": 4096, "gpt_13B": 5120, "gpt_22B": 6144, "gpt_40B": 8192}
MIST_SEQ = {"A100-SXM4-40GB": 4096, "A10G": 2048, "L4": 2048, "V100-SXM2-32GB": 2048}


class Data:
    """The calibration folder; every table is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read = cache(self._read)

    def _read(self, name: str) -> Rows:
        path = self.folder / name
        if not path.exists():
            raise SystemExit(f"{path} is missing: give the folder of the calibration tables with --data")
        with gzip.open(path, "rt") if name.endswith("gz") else path.open() as f:
            return list(csv.DictReader(f))


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits fixtures/hardware/*.toml from the calibration tables.")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data" / "calibration")
    parser.add_argument("--write", action="store_true", help="replace the fitted part of the files")
    options = parser.parse_args()
    data = Data(options.data)
    for device in (*DEVICES, *ASSUMED):
        text = fitted(data, device) if device in DEVICES else assumed(data, *ASSUMED[device])
        print(f"# ---- {device}\n{text}")
        if options.write:
            path = FOLDER / f"{device}.toml"
            path.write_text(path.read_text().split(MARK)[0].rstrip() + "\n\n" + MARK + text)


def assumed(data: Data, like: str, faster: float) -> str:
    """The constants of another device, with links that many times faster."""
    note = (
        f"# Nothing was measured on this device. As on {like}, with links {faster:g} times as fast by the data sheets:"
    )

    def scaled(match: re.Match[str]) -> str:
        return f"bus_gb_s = {[round(faster * float(v), 2) for v in match[1].split(',')]}"

    return f"{note}\n{re.sub(r'bus_gb_s = .([^]]*).', scaled, fitted(data, like))}"


def fitted(data: Data, device: str) -> str:
    isolated, vidur, mist, peak, bandwidth, sms = DEVICES[device]
    measured = isolated or (vidur and "vidur") or "mist"
    shapes = gemm_rows(data, measured if isolated else "", vidur, mist)
    constants, error = fit_gemm(shapes, peak, bandwidth, sms)
    lines = [
        "[gemm]",
        f"# {len(shapes)} shapes of {gemm_source(isolated, vidur, mist)}: {error:.1%}",
        *(f"{k} = {v}" for k, v in constants.items() if k != "tiles"),
        "tiles = [",
        *(f"    {{ rows = {r}, columns = {c}, efficiency = {e:.3f} }}," for r, c, e in constants["tiles"]),
        "]",
    ]
    lines += ["", *attention_lines(data, device, peak, sms)]
    lines += ["", *elementwise_lines(data, device)]
    lines += ["", *link_lines(data, device)]
    lines += ["", *host_lines(data)]
    sustained = in_place(data, device, constants)
    return "\n".join([f"[clocks]\n{sustained}", "", *lines]) + "\n"


# ---- matrix products


def gemm_source(isolated: str, vidur: str, mist: str) -> str:
    if isolated:
        return f"op_aiconfigurator_gemm_perf.csv.gz ({isolated}, bf16, faster of its libraries)"
    return "op_vidur_mlp.csv.gz" if vidur else f"op_mist_superscaler.csv.gz ({mist})"


def gemm_rows(data: Data, isolated: str, vidur: str, mist: str) -> np.ndarray:
    """(shapes, 4): m, n, k, seconds. Training sizes only: at least 256 each way."""
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
    """Forward products without tensor parallel (with it, their times contain communication)."""
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
    """As autoscout/simulate/roofline.py has it. `p`: logs of overhead, share of bandwidth, extra k, efficiencies."""
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
    """Products timed one by one run cool; inside a model the power limit lowers the clock. How far: the median ratio
    on the same device between products timed inside layers (Vidur, Mist) and what the fit above says."""
    isolated, vidur, mist, *_ = DEVICES[device]
    if not isolated:
        return "# products were timed inside layers already\nsustained = 1.0"
    if not (vidur or mist):
        return "# no layers were timed on this device: as on A100\nsustained = 0.85"
    if device in ("h100", "h200"):
        # Vidur's ratio is 0.86, but it timed one layer for moments, and an H100 at 700 W clocks lower after minutes.
        # 0.70 is what the four H100 rows of fms-fsdp say; they are not among those that the simulators are tested on.
        return "# from four end-to-end rows (fms-fsdp, H100), which are not tested on\nsustained = 0.7"
    ratios = in_place_ratios(data, device, as_logs(constants))
    text = ", ".join(f"{r:.3f}" for r in ratios)
    return (
        f"# inside layers against one by one, median by table (Vidur, Mist): {text}\nsustained = {np.mean(ratios):.3f}"
    )


# ---- attention, elementwise


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
    """Shares of the memory's bandwidth, by training kernels of known traffic on tensors far larger than the caches."""
    gpu = DEVICES[device][2] or "A100-SXM4-40GB"
    bandwidth = {"A100-SXM4-40GB": 1555, "A10G": 600, "L4": 300, "V100-SXM2-32GB": 900}[gpu]
    traffic: dict[str, tuple[str, Callable[[float, float], float]]] = {
        # op: (share that it measures, MiB moved, from input and output as the table states them)
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


# ---- links


def link_lines(data: Data, device: str) -> list[str]:
    name, vidur, mist, *_ = DEVICES[device]
    if name and device != "a100-80-pcie":
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
    # Where no sends were timed: what a pair exchanges in an all-to-all.
    a, b, _ = fit_line(points["send", 2] if ("send", 2) in points else points["all_to_all", 2])
    lines.append(f"send = {{ latency_us = [{1e6 * a:.1f}], bus_gb_s = [{b / 1e9:.2f}] }}")
    lines.append("# more inside layers: op_mist_superscaler.csv.gz, row-parallel products with tensor parallelism")
    lines.append(f"inside_us = {inside_us(data, device)}")
    kind = "NVLink" if device.startswith(("a100-80-sxm", "a100-40", "h1", "h2", "v100")) else "PCIe"
    return ["[island]", f"# {source}: {np.mean(errors):.1%}", f'kind = "{kind}"', "ranks = [2, 4, 8]", *lines]


def inside_us(data: Data, device: str) -> list[float]:
    """Latency that an all-reduce has inside a layer, beyond one that is timed alone: its ranks arrive one after the
    other, and the next product waits for the last. From row-parallel products with tensor parallelism (Mist), less the
    same product without: seconds = latency + bytes / bandwidth by group size, less the latency fitted alone."""
    gpu, of = ("V100-SXM2-32GB", "v100") if device == "v100" else ("A100-SXM4-40GB", "a100-40-sxm")
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
    """{(collective, ranks): [(bytes moved per rank, seconds)]}. The table counts elements of two bytes."""
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
            whole = size * n if r["collective"] == "all_gather" else size  # the table counts what a rank brings along
            points[r["collective"], n].append((passes[r["collective"]] * (n - 1) / n * whole * 2**20, value / 1e3))
    return points


def vidur_points(data: Data) -> dict:
    """One machine only: its `source_ref`s belong together (../shared/data/PROVENANCE.md)."""
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
    """(latency, bus bandwidth, error) of seconds = latency + bytes / bandwidth, in log space, for messages of at
    least 256 KiB: training sends nothing smaller that matters, and small ones take other protocols."""
    moved, seconds = np.array([p for p in points if p[0] >= 2**18]).T

    def predicted(p: np.ndarray) -> np.ndarray:
        return np.exp(p[0]) + moved / np.exp(p[1])

    start = [np.log(1e-5), np.log(np.max(moved / seconds))]
    bounds = (np.log([1e-6, 1e8]), np.log([1e-3, 1e12]))
    found = least_squares(
        lambda p: np.log(predicted(p)) - np.log(seconds), start, bounds=bounds, loss="soft_l1", f_scale=0.1
    )
    return float(np.exp(found.x[0])), float(np.exp(found.x[1])), float(np.abs(predicted(found.x) / seconds - 1).mean())


# ---- the host


def host_lines(data: Data) -> list[str]:
    """What PyTorch and Megatron need per operator when the device does not hold them up: for every operator the least
    time that any device and size took, which no longer depends on either; the median over operators."""
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


if __name__ == "__main__":
    main()
