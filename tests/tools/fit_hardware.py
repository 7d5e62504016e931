"""Fits the constants of fixtures/hardware/*.toml from measurements of kernels and collectives.

    python tests/tools/fit_hardware.py [--data ../shared/data/calibration] [--write]

Reads the calibration tables in place and prints, per device, the fitted sections of its record with the error of every
fit; --write writes them to the record, except values that it inherits from the record it is `like`. It never opens the
tables that the simulators are tested on (validation/*, landscapes/*): single operators and collectives go in,
end-to-end times are predicted. Constants that no table has for a device are taken from the most similar device, with a
remark."""

import argparse
import re
import tomllib
from pathlib import Path

from calibration_data import DEVICES, Data
from fit_kernels import attention_lines, elementwise_lines, host_lines
from fit_links import link_lines
from fit_products import fit_gemm, gemm_rows, gemm_source, in_place
from record_text import put


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits fixtures/hardware/*.toml from the calibration tables.")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data" / "calibration")
    parser.add_argument("--write", action="store_true", help="put the fitted sections into the records")
    options = parser.parse_args()
    data = Data(options.data)
    for device in DEVICES:
        text = fitted(data, device)
        print(f"# ---- {device}\n{text}")
        if options.write:
            put(device, tomllib.loads(text), said(text))


def said(text: str) -> dict[str, str]:
    """The comments of each section, joined into one sentence."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in text.splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
        elif "# " in line:
            found.setdefault(section, []).append(line.partition("# ")[2])
    return {section: "; ".join(comments) for section, comments in found.items()}


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
