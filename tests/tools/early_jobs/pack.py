"""Compresses a megabyte repeatedly and prints a line each time: pack.py --program zlib --level 6."""

import argparse
import bz2
import lzma
import time
import zlib

parser = argparse.ArgumentParser()
parser.add_argument("--program", default="lzma")
parser.add_argument("--level", type=int, default=9)
given = parser.parse_args()
text = b"".join(b"%d: %d of a line\n" % (i, i * i % 9973) for i in range(40_000))
pack = {"zlib": zlib.compress, "bz2": bz2.compress, "lzma": lambda t, level: lzma.compress(t, preset=level)}
for turn in range(100_000):
    began = time.perf_counter()
    size = len(pack[given.program](text, given.level))
    print(f"turn {turn} makes {size} took {1000 * (time.perf_counter() - began):.3f} ms", flush=True)
