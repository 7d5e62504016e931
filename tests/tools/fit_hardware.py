"""Fits the constants of fixtures/hardware/*.toml from measurements of kernels and collectives.

    python tests/tools/fit_hardware.py [--data ../shared/data/calibration] [--write]

Reads the calibration tables in place and prints, per device, the fitted part of its file with the error of every fit;
--write replaces what stands below the line "# fitted" of each file. It never opens the tables that the simulators are
tested on (validation/*, landscapes/*): single operators and collectives go in, end-to-end times are predicted.
What no table measures for a device is taken from the nearest one that it does, and says so.
"""

import argparse
import re
from pathlib import Path

from calibration_data import DEVICES, Data
from fit_kernels import attention_lines, elementwise_lines, host_lines
from fit_links import link_lines
from fit_products import fit_gemm, gemm_rows, gemm_source, in_place

FOLDER = Path(__file__).parents[2] / "fixtures" / "hardware"
MARK = "# fitted by tests/tools/fit_hardware.py; errors are mean absolute percentages on the rows fitted\n"
# No table has these: all constants are those of the device named, links as many times faster as the data sheets say.
ASSUMED = {
    **dict.fromkeys(("b200", "gb200", "b300", "gb300"), ("h100", 2.0)),
    **dict.fromkeys(("mi300x", "mi325x"), ("h100", 0.8)),
    **dict.fromkeys(("mi350x", "mi355x"), ("h100", 1.2)),
    "h800": ("h100", 0.444),
    "a800": ("a100", 0.667),
    **dict.fromkeys(("rtx4090", "rtx5090"), ("l40s", 1.0)),
    "rtx-pro-6000": ("l40s", 2.0),
}
# Blackwell has no deterministic backward pass of its own: Transformer Engine takes FlashAttention-2 there
# (get_attention_backend), whose older instructions do no more a multiprocessor than on Hopper: 334 TFLOP/s backward at
# head size 64 (Dao-AILab/flash-attention, issue 1589).
BLACKWELL = ("b200", "gb200", "b300", "gb300")
HOPPER_KERNELS = "flash1 = 0.35\nflash2 = 0.6\n"
OLDER_KERNELS = "# as many TFLOP/s a multiprocessor as there\nflash1 = 0.16\nflash2 = 0.27\ndeterministic = 0.27\n"
_CLOCKS = re.compile(r"\[clocks\]\n(?:#.*\n)*sustained = .*\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits fixtures/hardware/*.toml from the calibration tables.")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data" / "calibration")
    parser.add_argument("--write", action="store_true", help="replace the fitted part of the files")
    options = parser.parse_args()
    data = Data(options.data)
    for device in (*DEVICES, *ASSUMED):
        text = fitted(data, device) if device in DEVICES else assumed(data, device, *ASSUMED[device])
        print(f"# ---- {device}\n{text}")
        if options.write:
            path = FOLDER / f"{device}.toml"
            path.write_text(path.read_text().split(MARK)[0].rstrip() + "\n\n" + MARK + text)


def assumed(data: Data, device: str, like: str, faster: float) -> str:
    """The constants of another device, with links that many times faster, at the clocks that its own file says."""
    note = (
        f"# Nothing was measured on this device. As on {like}, with links {faster:g} times as fast by the data sheets:"
    )

    def scaled(match: re.Match[str]) -> str:
        return f"bus_gb_s = {[round(faster * float(v), 2) for v in match[1].split(',')]}"

    own = _CLOCKS.search((FOLDER / f"{device}.toml").read_text())
    text = re.sub(r"bus_gb_s = .([^]]*).", scaled, fitted(data, like))
    text = text.replace(HOPPER_KERNELS, OLDER_KERNELS) if device in BLACKWELL else text
    return f"{note}\n{_CLOCKS.sub(own[0], text) if own else text}"


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


if __name__ == "__main__":
    main()
