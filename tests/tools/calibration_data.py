"""The tables of single kernels and collectives that fit_hardware.py reads, and their names for each device."""

import csv
import gzip
from functools import cache
from pathlib import Path

Rows = list[dict[str, str]]

# device file: (name in the GEMM and NCCL tables, in Vidur's, in Mist's, peak TFLOP/s, GB/s, multiprocessors)
DEVICES = {
    "a100": ("A100-SXM-80GB", "A100-SXM-80GB", "A100-SXM4-40GB", 312, 2039, 108),
    "a100-40g": ("A100-SXM-80GB", "A100-SXM-80GB", "A100-SXM4-40GB", 312, 1555, 108),
    "a100-pcie": ("A100-SXM-80GB", "A100-SXM-80GB", "A100-SXM4-40GB", 312, 1935, 108),
    "h100": ("H100-SXM-80GB", "H100-SXM-80GB", "", 989, 3350, 132),
    "h200": ("H100-SXM-80GB", "H100-SXM-80GB", "", 989, 4800, 132),
    "l40s": ("L40S", "", "", 362, 864, 142),
    "a40": ("", "A40", "", 149.7, 696, 84),
    "a10g": ("", "", "A10G", 70, 600, 80),
    "l4": ("", "", "L4", 121, 300, 58),
    "v100": ("", "", "V100-SXM2-32GB", 125, 900, 80),
}
BORROWED = {  # device without tables → the device whose tables are used instead
    "a40": "A100-SXM-80GB",
    "a10g": "A100-SXM-80GB",
    "l4": "L40S",  # of the same generation
    "v100": "A100-SXM-80GB",
}
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
