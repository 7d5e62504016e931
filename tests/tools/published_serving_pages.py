"""Reads published runs of serving engines as rows: pages of GPUStack's performance lab (launch commands with outputs of
`vllm bench serve`), NVIDIA's overview of TensorRT-LLM's throughput, AccelMark's results. Their text is not in this
repository.

A row has a table's columns (see serving_tables.py), `held_out`, `random` (all lengths equal) and measurements by our
metrics' names. A run that cannot be expressed is a reason instead of a row."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# Chosen before any residual was seen.
HELD_OUT_MODELS = ("qwen3-14b", "qwen3-235b-a22b", "gpt-oss-20b", "70b", "mixtral")
HELD_OUT_CHIPS = ("H200", "A100-SXM4-80GB", "5090", "L4")
HELD_OUT_PAGES = ("glm-4.5-air/h100", "glm-4.x/a100", "glm-4.x/h100", "glm-4.x/h200")
HELD_OUT_SUITES = ("suite_D", "suite_F")  # SGLang's

_COMMAND = re.compile(r"^ *((?:\w+=\S+ +)*(?:vllm serve|python3? -m sglang|trtllm-serve)(?:[^\n]*\\\n)*[^\n]*)", re.M)
_RESULT = re.compile(r"=+ Serving Benchmark Result =+\n(.*?)\n\s*=====", re.S)
_MEASURED = {
    "Mean TTFT (ms)": "ttft_mean_ms",
    "Mean TPOT (ms)": "tpot_mean_ms",
    "Median ITL (ms)": "itl_p50_ms",
    "Output token throughput (tok/s)": "output_tokens_per_s",
}
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
_HEADINGS = {"vLLM": "vLLM", "SGLang": "SGLang", "TensorRT-LLM": "TensorRT-LLM"}
_SWITCHES = {  # switch of one of the three engines → our column
    "tp": ("tp", "tp-size", "tensor-parallel-size"),
    "pp": ("pp", "pp-size", "pipeline-parallel-size"),
    "dp": ("dp", "data-parallel-size"),
    "ep": ("ep", "ep-size"),
    "max_model_len": ("max-model-len", "max-seq-len", "context-length"),
    "max_num_batched_tokens": ("max-num-batched-tokens", "max-num-tokens"),
    "max_num_seqs": ("max-num-seqs", "max-batch-size", "max-running-requests"),
    "gpu_memory_utilization": ("gpu-memory-utilization", "mem-fraction-static"),
    "chunked_prefill_size": ("chunked-prefill-size",),
    "max_cudagraph_capture_size": ("cuda-graph-max-bs",),
    "kv_dtype": ("kv-cache-dtype",),
}
_ALONE = {
    "enable-expert-parallel": ("enable_expert_parallel", 1),
    "async-scheduling": ("async_scheduling", 1),
    "enable-chunked-prefill": ("chunked_prefill", 1),
    "enforce-eager": ("eager", 1),
}
# Tokens that the server's chat template adds to a prompt, which `vllm bench serve` does not count. GPT-OSS's first
# tokens (its system message) are equal in all requests.
_TEMPLATES = {"qwen3": {"template": 8}, "gpt-oss": {"template": 75, "shared_prefix": 64}}
_NOTHING = ("model", "model-path", "host", "port", "trust-remote-code", "reasoning-parser", "tool-call-parser",
            "tokenizer-mode", "enable-auto-tool-choice")  # fmt: skip
_NAMES = {name: ours for ours, names in _SWITCHES.items() for name in names}
# FP8 checkpoints are Qwen's, whose config.json has weight_block_size = [128, 128], except GLM's, with a scale per row.
_WORDS = {"glm-4.5-air-fp8": "fp8", "glm-4.6-fp8": "fp8", "fp8": "fp8_block", "deepseek-r1": "fp8_block", "awq": "awq",
          "gpt-oss": "mxfp4"}  # fmt: skip


def rows_of(folder: Path) -> tuple[list[Row], Counter[str]]:
    """(rows, reasons) of all pages of the three sources below a folder."""
    rows, reasons, told = list[Row](), Counter[str](), dict[Any, str]()
    for path in sorted(folder.rglob("*")):
        found: Iterator[Row | str] = iter(())
        if path.suffix == ".md" and "performance-lab" in path.parts:
            found = of_page(path)
        elif path.name == "perf-overview.md":
            found = of_overview(path)
        elif path.name == "result.json" and path.parent.parent.parent.name == "results":
            found = of_result(path)
        for one in found:
            if isinstance(one, str):
                reasons[one] += 1
                continue
            figures = tuple(one.get(name) for name in _MEASURED.values())  # no two runs have equal figures
            if None not in figures and told.setdefault(figures, one["page"]) != one["page"]:
                reasons["the figures of another page"] += 1
            else:
                rows.append(one)
    return rows, reasons


def of_page(path: Path) -> Iterator[Row | str]:
    text = path.read_text(encoding="utf-8")
    folder, chip = path.parent.name, path.stem.split("-")[0]
    versions = dict(re.findall(r"- (vLLM|SGLang|TensorRT-LLM): v?(\S+)", text))
    command = heading = extra = ""
    random = False
    for piece in re.split(r"(=+ Serving Benchmark Result =+\n.*?\n\s*=====+)", text, flags=re.S):
        if not (result := _RESULT.match(piece)):
            commands = _COMMAND.findall(piece)
            headings = [line for line in piece.splitlines() if line.startswith("#") or line.strip() in _HEADINGS]
            if commands:
                command, random = commands[-1].replace("\\\n", " "), False
            heading = headings[-1] if headings else heading
            labels = re.findall(r"# +(random|sharegpt|--)", piece, re.I)
            random = labels[-1].lower() == "random" if labels else random
            varied = piece.rstrip().splitlines()[-1].strip() if piece.strip() else ""
            extra = varied.lstrip("# ") if varied.startswith("# --") else ""
            continue
        numbers = {k.strip(): v for k, v in re.findall(r"^\s*(.+?):\s+([\d.]+)$", result[1], re.M)}
        yield _row(folder, chip, f"{command} {extra}", heading, versions, numbers, random)


def _row(folder: str, chip: str, command: str, heading: str, versions: dict[str, str], said: dict[str, str],
         random: bool) -> Row | str:  # fmt: skip
    if chip not in ("a100", "h100", "h200"):
        return "a device without constants"
    if folder.startswith(("deepseek-v3.2", "glm-5", "qwen3.5")):
        return "sparse or linear attention"
    engine = next((name for word, name in _ENGINES.items() if word in command), "")
    other = next((name for name in _HEADINGS if name in heading), engine)
    if engine != other:
        return "the heading names another engine than the command"
    switches = launched(command)
    if isinstance(switches, str):
        return switches
    model = next((w for w in shlex.split(command) if "/" in w and "=" not in w), folder).split("/")[-1]
    requests = int(said["Successful requests"])
    return {
        "source": "gpustack",
        "page": f"{folder}/{chip}",
        "model": model if folder in ("references", "glm-4.x") else folder,
        "framework": engine,
        "version": versions.get(engine, ""),
        "gpu": chip,
        "quantization": next((ours for word, ours in _WORDS.items() if word in model.lower()), "none"),
        "dtype": "bf16",
        "input_len": float(said["Total input tokens"]) / requests,
        "output_len": float(said["Total generated tokens"]) / requests,
        "requests": requests,
        "concurrency": int(float(said.get("Maximum request concurrency", 0))),
        "random": random,
        "held_out": folder in HELD_OUT_MODELS or f"{folder}/{chip}" in HELD_OUT_PAGES,
        **next((more for word, more in _TEMPLATES.items() if word in model.lower()), {}),
        **switches,
        **{ours: float(said[name]) for name, ours in _MEASURED.items() if name in said},
    }


def launched(command: str) -> Row | str:
    """The switches of a launch command as our columns, or a reason if one has no column."""
    words = shlex.split(command)
    if any("ATTENTION_BACKEND" in word for word in words):
        return "other attention kernels than the engine's default"
    found: Row = {}
    for at, word in enumerate(words):
        if not word.startswith("-") or word in ("-m", "-"):
            continue
        name, _, value = word.lstrip("-").replace("_", "-").partition("=")
        value = value or (words[at + 1] if at + 1 < len(words) else "")
        if "spec" in name:
            return "speculative decoding whose acceptance is not said"
        if name in _NAMES:
            found[_NAMES[name]] = value if name == "kv-cache-dtype" else float(value)
        elif name in _ALONE:
            found.update([_ALONE[name]])
        elif name not in _NOTHING:
            return f"--{name}"
    return found


_OVERVIEW = {"llama v3.1 8b": "llama-3.1-8b", "llama v3.1 70b": "llama-3.1-70b", "llama v3.1 405b": "llama-3.1-405b",
             "mistral 7b": "mistral-7b", "mixtral 8x7b": "mixtral-8x7b", "mixtral 8x22b": "mixtral-8x22b"}  # fmt: skip


def of_overview(path: Path) -> Iterator[Row | str]:
    """Rows of output tokens/s with all requests sent at once; 16-bit weights and cache on A100, else FP8."""
    text = path.read_text(encoding="utf-8")
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    version = (re.search(r"using version ([\d.]+\d)", text) or ["", ""])[1]
    counts = {(r[0], r[1]): int(r[3]) for r in lines if len(r) == 4 and r[3].isdigit()}
    head = next(r for r in lines if "GPU" in r)
    precision = next(r for r in lines if "Precision" in r)
    model = tp = ""
    for cells in lines:
        lengths = re.fullmatch(r"(\d+), (\d+)", cells[2]) if len(cells) == len(head) else None
        if not lengths:
            continue
        model, tp = cells[0] or model, cells[1] or tp
        for chip, kind, value in zip(head[3:], precision[3:], cells[3:], strict=True):
            if not value:
                continue
            if "GH200" in chip:
                yield "a device without constants"
                continue
            name = _OVERVIEW[model.lower()]
            eight = kind.lower() == "fp8"
            yield {
                "source": "trtllm",
                "page": f"{name} {chip.split()[0]}",
                "model": name,
                "framework": "TensorRT-LLM",
                "version": version,
                "gpu": chip,
                "tp": int(tp),
                "quantization": "fp8" if eight else "none",
                "kv_dtype": "fp8" if eight else "auto",
                "dtype": "fp16",
                "gpu_memory_utilization": 0.95,
                "chunked_prefill": int(int(lengths[1]) > 8192),  # assumed, because a step has at most 8192 tokens
                "front_end_ms": 1e-3,  # trtllm-bench runs the engine in its own process
                "request_ms": 1e-3,
                "input_len": int(lengths[1]),
                "output_len": int(lengths[2]),
                # The load is steady long before its end, so fewer requests are simulated than were sent.
                "requests": min(counts.get((lengths[1], lengths[2]), 1000), 8000),
                "concurrency": 0,
                "random": True,
                "held_out": any(word in name for word in HELD_OUT_MODELS),
                "output_tokens_per_s": float(value),
            }


def told_runner(said: Row) -> Row:
    """The settings of the runner in a result of AccelMark, by a table's names."""
    told = said["task"].get("extra_config") or {}
    named = {"eager": "enforce_eager", "gpu_memory_utilization": "gpu_memory_utilization"}
    return {ours: float(told[name]) for ours, name in named.items() if name in told}


def of_result(path: Path) -> Iterator[Row | str]:
    """Rows of one user, and of eight users for half an hour."""
    said = json.loads(path.read_text(encoding="utf-8"))
    chip, software, suite = said["chip"]["name"], said["software"], said["suite_id"]
    parallel, metrics = said["task"].get("parallelism") or {}, said["metrics"]
    if said["chip"]["vendor"] != "NVIDIA" or not re.search(r"H100|H200|A100|A800|4090$|5090|L4$", chip):
        yield "a device without constants"
        return
    one, many = metrics.get("interactive"), metrics.get("sustained")
    if not one or not many:
        yield "a scenario whose lengths are not said"
        return
    steady = [sample for sample in many["samples"] if not sample["is_warmup"] and sample["requests_completed"]]
    output = sum(s["tokens_out"] for s in steady) / max(sum(s["requests_completed"] for s in steady), 1)
    row = {
        "source": "accelmark",
        "page": f"{suite} {chip}",
        "model": said["model"]["model_id"].split("/")[-1],
        "framework": software["framework"],
        "version": software["framework_version"],
        "gpu": chip,
        "memory_gib": said["chip"]["memory_gb"],
        "tp": parallel.get("tensor_parallel_size", 1),
        "front_end_ms": 5,  # the engine runs in the client's process
        "request_ms": 1e-3,
        "quantization": "none",
        "dtype": "bf16",
        "max_model_len": 30208 if suite == "suite_D" else 4096,
        "input_len": {"suite_D": 28650, "suite_F": 95}.get(suite, 280),
        "output_len": output,
        "random": True,
        "held_out": any(c in chip for c in HELD_OUT_CHIPS)
        or (software["framework"] == "SGLang" and suite in HELD_OUT_SUITES),
        **told_runner(said),
    }
    yield {**row, "concurrency": 1, "requests": 30, "tpot_mean_ms": one["tpot_ms_p50"],
           "ttft_mean_ms": one["ttft_ms_p50"]}  # fmt: skip
    rates = sorted(s["throughput_tokens_per_sec"] for s in steady)
    yield {**row, "concurrency": many["sustained_concurrency"], "requests": 200,
           "output_tokens_per_s": rates[len(rates) // 2]}  # fmt: skip
