"""Imports results of `vllm bench serve`, `vllm bench throughput` and `vllm bench sweep` (a folder of them).

A result file of `bench serve` has the metrics and, in a sweep, the overrides of server and client; a sweep's
summary.json repeats its run=N.json, so only the latter are read. The client's request rate and concurrency are the
job's traffic, not knobs.
"""

from collections.abc import Iterator
from pathlib import Path

from autoscout.targets.found import Reader, Row, Source
from kb import door
from kb.records import AutoscoutError

_AT = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
MEANING = {
    **{f"{theirs}_{w}_ms": f"{w}_{ours}_ms" for w in ("ttft", "tpot", "itl", "e2el") for theirs, ours in _AT.items()},
    "request_throughput": "requests_per_s",
    "output_throughput": "output_tokens_per_s",
    "total_token_throughput": "total_tokens_per_s",
    "request_goodput": "goodput_rps",
    "request_goodput:": "goodput_rps",
    "requests_per_second": "requests_per_s",
    "tokens_per_second": "total_tokens_per_s",
    "duration": "cost_s@s",
    "elapsed_time": "cost_s@s",
    **dict.fromkeys(("date", "endpoint_type", "run_number", "label", "tokenizer_id"), "-"),
}
SAID = {
    "request_rate": "rate",
    "max_concurrency": "concurrency",
    "burstiness": "burstiness",
    "ramp_up_strategy": "ramp_up",
    "num_prompts": "requests",
    "completed": "completed",
    "failed": "failed",
    "model_id": "model",
}
_SERVE, _THROUGHPUT = {"request_throughput", "output_throughput"}, {"requests_per_second", "tokens_per_second"}


def recognizes(path: Path) -> bool:
    files = _files(path)
    return bool(files) and any(_is_result(_load(file)) for file in files[:20])


def read(path: Path) -> Source:
    """Errors: AutoscoutError (exit 2) for a folder without results."""
    rows = list(_rows(path))
    if not rows:
        raise AutoscoutError(f"{path}: holds no result of vllm bench", 2)
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    return Source(reader="vllm", columns=columns, rows=iter(rows), meaning=MEANING)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".json" else []
    runs = sorted(path.rglob("run=*.json"))
    return [f for f in runs or sorted(path.rglob("*.json")) if not f.name.startswith(("summary", "warmup"))]


def _rows(path: Path) -> Iterator[Row]:
    for file in _files(path):
        where = str(file.relative_to(path)) if path.is_dir() else file.name
        found = _load(file)
        if found is None:
            yield Row(where, {}, "is no JSON, or half of one")
        elif file.name.endswith("failure.json") and isinstance(found, dict):
            told = [found.get(name) for name in ("serve_overrides", "bench_overrides")]
            cells = {name: value for part in told if isinstance(part, dict) for name, value in part.items()}
            yield Row(where, {**cells, "status": "error", "evidence": str(found.get("error", ""))})
        else:
            for i, result in enumerate(found if isinstance(found, list) else [found]):
                if isinstance(result, dict) and _is_result(result):
                    yield _row(where if not isinstance(found, list) else f"{where}[{i}]", result)
                else:
                    yield Row(where, {}, "is no result of vllm bench")


def _row(where: str, result: dict[str, object]) -> Row:
    cells = {name: value for name, value in result.items() if not isinstance(value, list | dict)}
    said = {ours: cells[theirs] for theirs, ours in SAID.items() if theirs in cells}
    completed = said.get("completed")
    if isinstance(completed, int) and completed > 0:
        for theirs, ours in (("total_input_tokens", "input_tokens"), ("total_output_tokens", "output_tokens")):
            if isinstance(total := cells.get(theirs), int):
                said[ours] = total / completed
    if result.keys() >= _THROUGHPUT:  # of all requests at once, in the same process
        said |= {"rate": "inf", "requests": cells.get("num_requests")}
    return Row(where, cells, said=said)


def _is_result(found: object) -> bool:
    return isinstance(found, dict) and (found.keys() >= _SERVE or found.keys() >= _THROUGHPUT)


def _load(path: Path) -> object:
    try:
        return door.parsed_json(path.read_text())
    except (OSError, ValueError):
        return None


READER = Reader(recognizes=recognizes, read=lambda path, job, space, part: read(path), rank=2)
