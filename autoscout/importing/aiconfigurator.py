"""Tables of NVIDIA aiconfigurator (pareto.csv, best_config_topn.csv). Its numbers are estimates: they are stored as
predicted, and no session takes them for measurements."""

from pathlib import Path

import msgspec

from autoscout.importing.columnar import read_csv
from autoscout.targets.found import Reader, Source
from kb.records import AutoscoutError

MEANING = {
    "ttft": "ttft_mean_ms@ms",
    "tpot": "tpot_mean_ms@ms",
    "request_latency": "e2el_mean_ms@ms",
    "tokens/s": "output_tokens_per_s",
    "request_rate": "requests_per_s",
    "memory": "peak_memory_gib@gib",
    "bs": "max_num_seqs",
}


def recognizes(path: Path) -> bool:
    if not path.name.endswith((".csv", ".csv.gz")):
        return False
    try:
        columns = set(read_csv(path).columns)
    except AutoscoutError:
        return False
    return {"tokens/s/user", "tokens/s/gpu", "ttft", "tpot"} <= columns


def read(path: Path) -> Source:
    return msgspec.structs.replace(read_csv(path), reader="aiconfigurator", meaning=MEANING, simulated=True)


READER = Reader(recognizes=recognizes, read=lambda path, job, space, part: read(path), rank=1)
