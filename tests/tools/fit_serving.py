"""Fits the [serving] groups of fixtures/hardware/*.toml to the measured kernels of ../shared/data/calibration.

    pip download --no-deps aiconfigurator==0.8.0 && unzip aiconfigurator-0.8.0*.whl 'aiconfigurator/systems/data/*'
    PYTHONPATH=.:tests/tools .venv/bin/python tests/tools/fit_serving.py ../shared/data/calibration \
        aiconfigurator/systems/data [--write]

Reads the tables in place (microsoft/vidur, MIT; ai-dynamo/aiconfigurator, Apache-2.0), Blackwell's from the release of
aiconfigurator above. Prints each group with the median error of the fit and the number of rows; --write writes them to
the records. It takes about three minutes."""

import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from msgspec.structs import replace
from record_text import put
from scipy.optimize import least_squares

from autoscout.simulate.hardware.device import all_hardware
from autoscout.simulate.serving import operators as op
from autoscout.simulate.serving.weight_formats import WEIGHT_BYTES

# Record → its name in the tables.
DEVICES = {"a100": "A100-SXM-80GB", "a40": "A40", "h100": "H100-SXM-80GB", "l40s": "L40S"}
# Record → folder of aiconfigurator's newer tables.
NEWER = {"b200": "b200_sxm/vllm/0.14.1", "gb200": "gb200/vllm/0.14.0", "gb300": "gb300/vllm/0.14.0"}
SOURCE = "microsoft/vidur (MIT) and ai-dynamo/aiconfigurator (Apache-2.0)"
FOUR_BITS = ("vllm/0.14.1", "vllm/0.19.0", "trtllm/1.0.0rc6", "trtllm/1.2.0rc5")  # of b200_sxm
_MIN_DIM = 512


class Tables:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self, columns: str, table: str, where: str) -> np.ndarray:
        source = f"read_csv('{self.folder / table}.csv.gz', sample_size=-1)"
        return np.array(duckdb.sql(f"SELECT {columns} FROM {source} WHERE {where}").fetchall(), dtype=float)


class Newer(Tables):
    """A release of aiconfigurator's tables for one device and engine, which call 16-bit values `float16`."""

    def rows(self, columns: str, table: str, where: str) -> np.ndarray:
        path = self.folder / f"{table.removeprefix('op_aiconfigurator_')}.txt"
        if not path.exists():
            return np.zeros((0, 1))
        source = f"(SELECT *, '{self.folder.parts[-3]}' AS gpu FROM read_csv('{path}', sample_size=-1))"
        where = where.replace("'bfloat16'", "'float16'")
        return np.array(duckdb.sql(f"SELECT {columns} FROM {source} WHERE {where}").fetchall(), dtype=float)


def fit(model: Any, start: list[float], measured: np.ndarray, low: list[float], high: list[float]) -> tuple[Any, float]:
    """(constants with the smallest robust log error, median relative error)."""

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.log(model(np.exp(logs))) - np.log(measured)

    found = least_squares(
        residuals, np.log(start), bounds=(np.log(low), np.log(high)), loss="soft_l1", f_scale=0.1, x_scale="jac"
    )
    return np.exp(found.x), float(np.median(np.abs(np.expm1(residuals(found.x)))))


def gemm(tables: Tables, name: str, sms: int, tflops: float, gb_s: float) -> dict[str, Any]:
    """Fits products: cuBLAS in vLLM 0.14 (aiconfigurator) and linear layers of eight models (Vidur)."""
    m, n, k, us = _gemm_rows(tables, name).T

    def model(x: np.ndarray) -> np.ndarray:
        return op.gemm_us(op.ServingGemm(*x), sms, m, n, k, 2.0)

    high = [30, tflops, gb_s, 8, 3]
    x, error = fit(model, [4, tflops * 0.8, gb_s * 0.8, 3, 1.4], us, [0.5, tflops / 4, gb_s / 4, 1, 1], high)
    return {**_named(op.ServingGemm, x), "_error": error, "_rows": len(us)}


def _gemm_rows(tables: Tables, name: str) -> np.ndarray:
    where = f"gpu = '{name}' AND gemm_dtype = 'bfloat16' AND framework = 'VLLM' AND n BETWEEN {_MIN_DIM} AND 32768"
    found = [tables.rows("m, n, k, latency * 1000", "op_aiconfigurator_gemm_perf", f"{where} AND k >= {_MIN_DIM}")]
    head = "hidden / heads"
    for n, k, time in (
        (f"(heads + 2 * kv_heads) * {head} / tp", "hidden", "attn_pre_proj_ms"),
        ("hidden", "hidden / tp", "attn_post_proj_ms"),
        ("ffn * (CASE WHEN use_gated_mlp THEN 2 ELSE 1 END) / tp", "hidden", "mlp_up_proj_ms"),
        ("hidden", "ffn / tp", "mlp_down_proj_ms"),
    ):
        # Above 64 tokens, only multiples of 256 are used, because the table has far more sizes than the fit needs.
        some = f"gpu = '{name}' AND {time} > 0 AND num_tokens <= 8192 AND (num_tokens <= 64 OR num_tokens % 256 = 0)"
        found.append(tables.rows(f"num_tokens, {n}, {k}, {time} * 1000", "op_vidur_mlp", some))
    return np.vstack([f for f in found if len(f)])


def four_bits(tables: Tables, name: str, ours: op.ServingGemm, sms: int, gb_s: float) -> tuple[float, float]:
    """(speed of NVFP4 products relative to `ours` in 16 bits, median error), without the quantization of activations to
    4 bits: a kernel that moves their bytes at `gb_s`."""
    where = f"gpu = '{name}' AND gemm_dtype = 'nvfp4' AND n BETWEEN {_MIN_DIM} AND 32768 AND k BETWEEN 1024 AND 32768"
    m, n, k, us = tables.rows("m, n, k, latency * 1000", "op_aiconfigurator_gemm_perf", where).T

    def model(x: np.ndarray) -> np.ndarray:
        overhead, speed, activation, kernel = x
        product = op.gemm_us(replace(ours, overhead_us=overhead), sms, m, n, k, WEIGHT_BYTES["nvfp4"], speed)
        return product + 1e-3 * activation * m * k / gb_s + kernel

    x, error = fit(model, [4, 2.5, 3, 2], us, [0.5, 0.3, 0.01, 0.01], [30, 8, 200, 30])
    return float(x[1]), error


def elementwise(tables: Tables, name: str) -> dict[str, Any] | None:
    """Fits two norms, rotary positions, the activation and two additions of one layer (Vidur)."""
    parts = "input_layernorm_ms + post_attention_layernorm_ms + attn_rope_ms + mlp_act_ms + 2 * add_ms"
    columns = f"num_tokens, hidden, hidden * (1 + 2.0 * kv_heads / heads) / tp, ffn / tp, 1000 * ({parts})"
    rows = tables.rows(columns, "op_vidur_mlp", f"gpu = '{name}' AND use_gated_mlp AND num_tokens <= 8192")
    if not len(rows):
        return None
    tokens, hidden, qkv, ffn, us = rows.T
    moved = elementwise_bytes(tokens, hidden, qkv, ffn)

    def model(x: np.ndarray) -> np.ndarray:
        return op.elementwise_us(op.ServingElementwise(*x), moved, 6.0)

    x, error = fit(model, [4, 1000], us, [0.5, 50], [20, 20000])
    return {**_named(op.ServingElementwise, x), "_error": error, "_rows": len(us)}


def elementwise_bytes(tokens: Any, hidden: Any, qkv: Any, ffn: Any) -> Any:
    """Bytes that the six kernels read and write, with 2-byte values; see `Engine.elementwise_bytes`."""
    return 2 * tokens * (10 * hidden + 2 * qkv + 3 * ffn)


def decode(tables: Tables, name: str, gb_s: float) -> dict[str, Any] | None:
    where = (
        f"gpu = '{name}' AND framework = 'VLLM' AND kv_cache_dtype = 'bfloat16' AND num_key_value_heads >= 4 "
        "AND step BETWEEN 63 AND 16384 AND batch_size <= 256"
    )
    columns = "batch_size, step, num_heads, num_key_value_heads, latency * 1000"
    found = [tables.rows(columns, "op_aiconfigurator_generation_attention_perf", where)]
    if name.startswith("A100"):
        vidur = "NOT is_prefill AND kv_cache_size > 63 AND batch_size % 16 = 0"
        found.append(
            tables.rows("batch_size, kv_cache_size, 32, 4, attn_decode_ms * 1000", "op_vidur_attention_a100", vidur)
        )
    rows = np.vstack([f for f in found if len(f)]) if any(map(len, found)) else np.zeros((0, 5))
    if not len(rows):
        return None
    seqs, context, heads, kv_heads, us = rows.T

    def model(x: np.ndarray) -> np.ndarray:
        return op.decode_us(op.Decode(*x), seqs, seqs * context, kv_heads * 128 * 4, heads / kv_heads)

    x, error = fit(model, [15, gb_s * 0.8, 0.05, 0.05], us, [1, gb_s / 4, 1e-4, 1e-4], [60, gb_s * 1.5, 0.5, 2])
    return {**_named(op.Decode, x), "_error": error, "_rows": len(us)}


def prefill(tables: Tables, name: str, sms: int, tflops: float, gb_s: float) -> dict[str, Any] | None:
    where = (
        f"gpu = '{name}' AND framework = 'VLLM' AND kv_cache_dtype = 'bfloat16' AND isl BETWEEN 64 AND 8192 "
        "AND num_heads >= 8 AND num_key_value_heads >= 2"
    )
    columns = "batch_size, isl, num_heads, num_key_value_heads, latency * 1000"
    rows = tables.rows(columns, "op_aiconfigurator_context_attention_perf", where)
    if not len(rows):
        return None
    seqs, length, heads, kv_heads, us = rows.T

    def model(x: np.ndarray) -> np.ndarray:
        c = op.Prefill(*x)
        pairs = seqs * length * (length + 1) / 2
        return op.prefill_us(c, sms, seqs, seqs * length, pairs, heads, 128.0, kv_heads * 128 * 4)

    start, low = [12, tflops / 2, 1, 0.5, gb_s * 0.7], [2, tflops / 8, 1e-3, 1e-3, gb_s / 4]
    x, error = fit(model, start, us, low, [40, tflops, 6, 1, gb_s])
    return {**_named(op.Prefill, x), "_error": error, "_rows": len(us)}


def experts(tables: Tables, name: str, tflops: float, gb_s: float) -> dict[str, Any] | None:
    where = (
        f"gpu = '{name}' AND kernel_source = 'vllm_fused_moe' AND moe_dtype = 'bfloat16' AND num_tokens <= 16384 "
        "AND distribution = 'power_law_1.01' AND moe_ep_size = 1 AND inter_size / moe_tp_size >= 192 "
        "AND num_experts <= 256"
    )
    columns = "num_tokens, hidden_size, inter_size / moe_tp_size, topk, num_experts, latency * 1000"
    rows = tables.rows(columns, "op_aiconfigurator_moe_perf", where)
    if not len(rows):
        return None
    tokens, hidden, ffn, topk, count, us = rows.T

    def model(x: np.ndarray) -> np.ndarray:
        return op.experts_us(op.Experts(*x), tokens, hidden, ffn, topk, count, 2.0, 1.0)

    start, low = [20, tflops / 2, gb_s * 0.8, 1.5, 32, 0.15], [1, tflops / 8, gb_s / 4, 1, 1, 1e-3]
    x, error = fit(model, start, us, low, [200, tflops, gb_s, 6, 200, 1])
    return {**_named(op.Experts, x), "_error": error, "_rows": len(us)}


def all_reduce(tables: Tables, name: str) -> dict[str, Any] | None:
    """Median microseconds by message size and devices, with vLLM's own kernel (in a CUDA graph) if it exists."""
    knots = [2**e for e in range(12, 28, 2)]
    columns = "num_gpus, 2 * message_size, 1000 * latency"  # in bytes; tables count 16-bit elements
    rows = tables.rows(columns, "op_aiconfigurator_custom_allreduce_perf", f"gpu = '{name}' AND backend = 'vllm_graph'")
    if name == "A40":
        vidur = "collective = 'all_reduce' AND source_ref LIKE 'data/profiling/a40%081347e9b9'"  # with NVLink pairs
        rows = tables.rows("num_workers, size_bytes, 1000 * median_ms", "comm_vidur", vidur)
    if not len(rows):
        return None
    found: dict[str, Any] = {"bytes": knots}
    for world in sorted({int(w) for w in rows[:, 0]}):
        _, size, us = rows[rows[:, 0] == world].T
        at = [np.abs(np.log2(size / knot)) <= 0.5 for knot in knots]
        known = [(k, float(np.median(us[a]))) for k, a in zip(knots, at, strict=True) if a.any()]
        sizes, times = zip(*known, strict=True)
        found[f"gpus_{world}_us"] = np.interp(np.log(knots), np.log(sizes), times)
    return {**found, "_error": 0.0, "_rows": len(rows)}


def host(tables: Tables, ours: str) -> dict[str, Any] | None:
    """CPU milliseconds per step and per running sequence to schedule, prepare, sample and process (medians, Vidur).

    Ray's share is excluded, because vLLM's workers communicate through shared memory."""
    path = f"cpu_overheads/{ours}__cpu_overheads"
    if not (tables.folder / f"{path}.csv.gz").exists():
        return None
    total = "schedule_median + prepare_inputs_e2e_median + sampler_e2e_median + process_model_outputs_median"
    rows = tables.rows(f"batch_size, {total}", path, "model_name NOT LIKE '%34b%'")
    seqs, ms = rows.T

    def model(x: np.ndarray) -> np.ndarray:
        return x[0] + x[1] * seqs

    x, error = fit(model, [1.5, 0.1], ms, [0.01, 1e-3], [10, 1])
    launch = _launch_us(tables)
    return {"step_ms": x[0], "sequence_ms": x[1], "launch_us": launch, "_error": error, "_rows": len(ms)}


def _launch_us(tables: Tables) -> float:
    """Microseconds to launch an operator of vLLM without a CUDA graph on the A100's host: small all-reduces without and
    with a graph."""
    small = "gpu = 'A100-SXM-80GB' AND message_size <= 65536 AND backend = "
    eager, graph = (
        np.median(tables.rows("1000 * latency", "op_aiconfigurator_custom_allreduce_perf", f"{small}'{how}'"))
        for how in ("vllm_eager", "vllm_graph")
    )
    return float(eager - graph)


def _named(kind: type, values: np.ndarray) -> dict[str, float]:
    return dict(zip(kind.__struct_fields__, map(float, values), strict=True))


def _put(device: str, group: str, constants: dict[str, Any] | None, write: bool) -> None:
    if constants is None:
        return
    error, rows = constants.pop("_error"), constants.pop("_rows")
    found = {
        name: [_digits(v) for v in value] if isinstance(value, list | np.ndarray) else _digits(value)
        for name, value in constants.items()
    }
    source = f"{rows} rows of {SOURCE}" + (f", median error {error:.1%}" if error else "")
    print(f"\n# {device}: {source}\n[serving.{group}]\n" + "\n".join(f"{k} = {v}" for k, v in found.items()))
    if write:
        put(device, {f"serving.{group}": found}, {f"serving.{group}": source})


def _digits(value: float) -> float | int:
    """Rounds to four digits, more than the precision of the measurements."""
    short = float(f"{value:.4g}") if value < 1e4 else int(value)
    return int(short) if short == int(short) else short


def memory_share(tables: Tables) -> float:
    """Share of the data sheet's bandwidth that a plain kernel reaches: large additions on the A100-80GB (Vidur).

    On the A100-40GB, whose memory is slower and whose kernels are not published, this share also bounds cuBLAS and
    attention: on the 80 GB device, latency limits them to 1.55 TB/s, the full bandwidth of the 40 GB device."""
    where = "gpu = 'A100-SXM-80GB' AND num_tokens BETWEEN 4096 AND 8192 AND hidden >= 4096"
    rows = tables.rows("num_tokens * hidden * 6, add_ms", "op_vidur_mlp", where)
    return float(np.median(rows[:, 0] / rows[:, 1] * 1e-6)) / all_hardware()["a100"].memory_gb_s


def main() -> None:
    tables, newer, write = Tables(Path(sys.argv[1])), Path(sys.argv[2]), "--write" in sys.argv[3:]
    for ours, name in DEVICES.items():
        _fit_device(tables, ours, name, write)
    for ours, path in NEWER.items():
        _fit_device(Newer(newer / path), ours, path.split("/")[0], write)
    print(f"\n# a100-40g: serving.memory_share = {memory_share(tables):.3f}")
    _print_four_bits(newer / "b200_sxm")


def _print_four_bits(folder: Path) -> None:
    """Prints the constants of kernels.four_bits."""
    hw = all_hardware()["b200"]
    fitted = gemm(Newer(folder / FOUR_BITS[0]), folder.name, hw.multiprocessors, hw.peak("bf16") / 1e12, hw.memory_gb_s)
    ours = op.ServingGemm(**{name: fitted[name] for name in op.ServingGemm.__struct_fields__})
    print("\n# Products in NVFP4 beside 16 bits, B200:")
    for path in FOUR_BITS:
        share, error = four_bits(Newer(folder / path), folder.name, ours, hw.multiprocessors, 0.65 * hw.memory_gb_s)
        print(f"# {path} {share:.2f}, median error {error:.1%}")


def _fit_device(tables: Tables, ours: str, name: str, write: bool) -> None:
    hw = all_hardware()[ours]
    sms, tflops, gb_s = hw.multiprocessors, hw.peak("bf16") / 1e12, hw.memory_gb_s
    groups = {
        "gemm": gemm(tables, name, sms, tflops, gb_s),
        "elementwise": elementwise(tables, name),
        "decode": decode(tables, name, gb_s),
        "prefill": prefill(tables, name, sms, tflops, gb_s),
        "experts": experts(tables, name, tflops, gb_s),
        "all_reduce": all_reduce(tables, name),
        "host": host(tables, name.split("-")[0].lower()),
    }
    for group, constants in groups.items():
        _put(ours, group, constants, write)


if __name__ == "__main__":
    main()
