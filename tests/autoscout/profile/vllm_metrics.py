"""Runs under vLLM's interpreter: the metrics that `vllm bench serve` computes from our records of requests.

stdin: {"duration_s", "requests": [{"sent", "chunks", "count", "asked"}], "goodput": {"ttft": ms, …}}; stdout: JSON.
"""

# pyright: reportMissingImports=false

import json
import sys
from itertools import pairwise

from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics

given = json.load(sys.stdin)
outputs = [
    RequestFuncOutput(
        success=True,
        start_time=r["sent"],
        ttft=r["chunks"][0] - r["sent"],
        itl=[after - before for before, after in pairwise(r["chunks"])],
        latency=r["chunks"][-1] - r["sent"],
        output_tokens=r["count"],
        prompt_len=r["asked"],
    )
    for r in given["requests"]
]
found, _ = calculate_metrics([], outputs, given["duration_s"], None, [50, 90, 95, 99], given["goodput"])
said = {
    "requests_per_s": found.request_throughput,
    "goodput_rps": found.request_goodput,
    "output_tokens_per_s": found.output_throughput,
    "total_tokens_per_s": found.total_token_throughput,
}
for name in ("ttft", "tpot", "itl", "e2el"):
    said[f"{name}_mean_ms"] = getattr(found, f"mean_{name}_ms")
    said |= {f"{name}_p{q}_ms": value for q, value in getattr(found, f"percentiles_{name}_ms")}
print("\n" + json.dumps({name: float(value) for name, value in said.items()}))
