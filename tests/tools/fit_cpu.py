"""Fits the constants of fixtures/hardware/cpu.toml to runs of the tiny Megatron jobs on this kind of machine.

    PYTHONPATH=. python tests/tools/fit_cpu.py [--facts ../shared/facts]

Single kernels were not timed on CPUs, so the few constants are fitted end to end, on runs of the idle machine
(megatron-cpu-grid-idle.csv), and validated on those of the loaded machine. Prints the constants."""

import argparse
import csv
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from scipy.optimize import least_squares

import autoscout.simulate.hardware.device as known
from autoscout.simulate.hardware.device import Curve, Hardware
from autoscout.simulate.training.step import Training


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits the CPU's constants from runs of the tiny jobs.")
    parser.add_argument("--facts", type=Path, default=Path(__file__).parents[3] / "shared" / "facts")
    print(fit_cpu(parser.parse_args().facts))


def cpu_rows(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns and seconds of the tiny Megatron runs on this CPU (../shared/facts/megatron-on-cpu.md, section 4)."""
    if not path.exists():
        raise SystemExit(f"{path} is missing: give the folder of the facts with --facts")
    with path.open() as f:
        rows = [r for r in csv.DictReader(f) if r["status"] == "ok" and r["omp"] == "1"]

    def number(name: str, otherwise: float) -> np.ndarray:
        return np.array(
            [
                float(r[name]) if r[name] not in ("", "True", "False") else float(r[name] == "True") or otherwise
                for r in rows
            ]
        )

    moe = number("experts", 0) > 0
    columns = {
        "gpu": np.array(["cpu"] * len(rows)), "layers": np.where(moe, 4.0, 8.0), "hidden": 128.0, "heads": 8.0,
        "seq_len": 128.0, "vocab": 2048.0, "global_batch": 16.0, "te": 0.0, "ffn": 512.0, "topk": 2.0,
        "dtype": np.array(["bf16" if r["bf16"] == "True" else "fp32" for r in rows]),
        "ar": np.array([r["recompute"] or "none" for r in rows]),
        "ar_method": np.array([r["recompute_method"] or "uniform" for r in rows]),
        "dispatcher": np.array([r["dispatcher"] or "alltoall" for r in rows]),
        "ar_layers": number("recompute_layers", 1),
        "experts": number("experts", 0), "gpus": number("nproc", 1), "ddp_bucket": number("bucket", 4e7) * 4 / 2**20,
        **{k: number(k, 1) for k in ("tp", "pp", "vpp", "cp", "ep", "mbs", "dp")},
        **{k: number(k, 0) for k in ("sp", "overlap_grad", "overlap_param", "overlap_p2p", "distopt")},
    }  # fmt: skip
    return columns, np.array([float(r["sec_min"]) for r in rows])


def cpu_hardware(p: np.ndarray, base: Hardware) -> Hardware:
    """`p`: logs of TFLOP/s, GB/s, µs per operator forward and backward, µs per collective of 2, 4 and 8 ranks, µs per
    send, bus GB/s, ms per step."""
    peak, bandwidth, forward, backward, two, four, eight, send, bus, step = np.exp(p)
    curve = Curve([two, four, eight], [bus] * 3)
    island = replace(
        base.island,
        all_reduce=curve,
        all_gather=curve,
        reduce_scatter=curve,
        all_to_all=curve,
        send=Curve([send], [bus]),
    )
    return replace(
        base,
        peak_tflops={"fp32": peak, "bf16": 2 * peak},
        memory_gb_s=bandwidth,
        island=island,
        host=replace(base.host, forward_us=forward, backward_us=backward, step_ms=step),
    )


def fit_cpu(facts: Path) -> str:
    """Fits the constants on the idle machine's runs, and prints the rank correlation on the loaded machine's."""
    base = known.all_hardware()["cpu"]
    columns, seconds = cpu_rows(facts / "megatron-cpu-grid-idle.csv")
    start = np.log([0.05, 10, 60, 80, 150, 500, 2000, 200, 1.0, 20])

    def errors(p: np.ndarray, columns: dict, seconds: np.ndarray) -> np.ndarray:
        known.all_hardware()["cpu"] = cpu_hardware(p, base)
        return np.log(Training().predict(columns).value / seconds)

    found = least_squares(
        lambda p: np.append(errors(p, columns, seconds), 0.1 * (p - start)), start, loss="soft_l1", f_scale=0.1
    )
    peak, bandwidth, forward, backward, two, four, eight, send, bus, step = np.exp(found.x)
    error = np.abs(np.expm1(errors(found.x, columns, seconds))).mean()
    known.all_hardware()["cpu"] = base
    latency = f"latency_us = [{two:.0f}, {four:.0f}, {eight:.0f}], bus_gb_s = [{bus:.2f}, {bus:.2f}, {bus:.2f}]"
    return "\n".join(
        [
            f"# {len(seconds)} runs of megatron-cpu-grid-idle.csv, end to end: {error:.1%}",
            f"memory_gb_s = {bandwidth:.1f}",
            f"peak_tflops = {{ fp32 = {peak:.4f}, bf16 = {2 * peak:.4f} }}",
            f"{{ {latency} }}  # every collective",
            f"send = {{ latency_us = [{send:.0f}], bus_gb_s = [{bus:.2f}] }}",
            f"[host]\nforward_us = {forward:.0f}\nbackward_us = {backward:.0f}\nstep_ms = {step:.1f}",
        ]
    )


if __name__ == "__main__":
    main()
