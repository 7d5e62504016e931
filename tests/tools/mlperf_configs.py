"""Reads configurations of submissions to MLPerf Inference without executing them: NVIDIA's Python of v4.1 (classes) and
since v5.1 (dictionaries), AMD's YAML since v5.1. RedHat's deployments are copied here manually."""

import ast
import re
from pathlib import Path
from typing import Any

import yaml

Settings = dict[str, Any]
# settings of TensorRT-LLM's PyTorch backend only
_OF_PYTHON = {"moe_backend", "cuda_graph_batch_sizes", "torch_compile_config"}
_ENDPOINTS = ("deepseek-r1", "gpt-oss-120b")  # models whose DEFAULT_CORE_TYPE is trtllm-serve
_COUNTS = {"tensor_parallelism": "tp", "pipeline_parallelism": "pp", "moe_expert_parallelism": "ep"}


# vLLM 0.10.0 on one device, from the commands in RedHat's code/llama3.1-8b/README.md.
_FP8 = {"framework": "vLLM", "tp": 1, "quantization": "fp8"}
_REDHAT: dict[tuple[str, str], Settings] = {
    ("H100", "Offline"): _FP8 | {"max_num_seqs": 1024, "max_num_batched_tokens": 4096, "kv_dtype": "fp8"},
    ("H100", "Server"): _FP8
    | {
        "max_num_seqs": 512,
        "max_num_batched_tokens": 1024,
        "gpu_memory_utilization": 0.91,
        "long_prefill": 256,
        "served": 1,
    },
    ("l40s", "Offline"): _FP8
    | {"max_num_seqs": 512, "max_num_batched_tokens": 16384, "kv_dtype": "fp8", "long_prefill": 256},
    ("l40s", "Server"): _FP8 | {"max_num_seqs": 256, "kv_dtype": "fp8", "gpu_memory_utilization": 0.96, "served": 1},
}
# vLLM 0.14.1 behind llm-d 0.5.0, with the arguments in src/gpt-oss-120b/setup/llm-d/*/override_*.yaml of v6.0.
_GPT_OSS = {"framework": "vLLM", "tp": 1, "quantization": "mxfp4", "gpu_memory_utilization": 0.95, "served": 1}
_LLM_D: dict[tuple[str, str], Settings] = {
    ("H200", "Offline"): _GPT_OSS | {"max_num_seqs": 320, "max_num_batched_tokens": 8192},
    ("H200", "Server"): _GPT_OSS | {"max_num_seqs": 448, "max_num_batched_tokens": 2048},
    ("B200", "Offline"): _GPT_OSS | {"max_num_seqs": 320, "max_num_batched_tokens": 8192},
    ("B200", "Server"): _GPT_OSS | {"max_num_seqs": 1080, "max_num_batched_tokens": 16384, "kv_dtype": "fp8"},
}
_TYPED = {"llama3.1-8b": _REDHAT, "gpt-oss-120b": _LLM_D}
_YAML = ("code*/{model}*/harness_llm/models/{model}", "src/{model}*", "src/code/{model}*", "configs/*/{model}*")


def told(folder: Path, system: str, model: str, scenario: str) -> Settings | str:
    """The settings by a table's names from a submitter's `folder`, or the reason why there are none."""
    file = model.replace("3.1", "3_1")
    files = [path for name in (file, model) for path in sorted(folder.glob(f"configs/*/{scenario}/{name}.py"))]
    near = [
        path for path in files if _plain(path.parts[-3]) in _plain(system) or _plain(system) in _plain(path.parts[-3])
    ]
    if near:
        try:
            return _of_tensorrt(_of_dictionaries(near[0]), model)
        except SyntaxError:
            return "a configuration that is no Python"
    classes = folder / f"configs/{file}/{scenario}/__init__.py"
    if classes.exists():
        found = _of_classes(classes, system)
        return _of_tensorrt(found, model) if found else "no configuration of that system"
    device = next(iter(re.findall(r"mi3\d\dx", system.lower())), "")
    for place in _YAML if device else ():
        path = f"{place.format(model=model)}/{scenario.lower()}_{device}.yaml"
        capitals = path.replace(device, device.upper())  # its own, not another submitter's
        if yamls := sorted(folder.glob(capitals)) or sorted(folder.glob(path)):
            return _of_vllm(yaml.safe_load(yamls[0].read_text(encoding="utf-8")), model)
    if folder.name == "RedHat" and model in _TYPED:
        return next(said for (chip, load), said in _TYPED[model].items() if chip in system and load == scenario)
    return "no configuration of that system"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("_trt", ""))


def _of_tensorrt(said: Settings, model: str) -> Settings | str:
    build, runtime = said.get("trtllm_build_flags") or {}, said.get("trtllm_runtime_flags") or {}
    if runtime.get("speculative_config") or runtime.get("mtp") or runtime.get("speculative_decoding"):
        return "guessed tokens, and no word of how many were right"
    disaggregated = any(str(name).startswith("__disagg") for name in runtime)
    if disaggregated or said.get("core_type") == "TRTLLM_DISAGG_ENDPOINT":
        return "prompts on servers of their own"
    batches = said.get("gpu_batch_size") or {}
    eight = said.get("use_fp8") or said.get("precision") == "fp8"
    checkpoint = said.get("trtllm_checkpoint_flags") or {}
    together = bool(build.get("enable_attention_dp"))
    balanced = together and runtime.get("adp_balancing_enable", True)
    fours = {"fp4": "mxfp4" if model.startswith("gpt-oss") else "nvfp4"}
    found: Settings = {ours: int(said.get(name) or build.get(name) or 1) for name, ours in _COUNTS.items()}
    tokens = runtime.get("max_num_tokens") or build.get("max_num_tokens") or said.get("max_num_tokens") or 16384
    return found | {
        "max_num_seqs": next(iter(batches.values()), 0),
        "max_num_batched_tokens": tokens,
        "gpu_memory_utilization": runtime.get("kvcache_free_gpu_mem_frac")
        or said.get("kvcache_free_gpu_mem_frac", 0.9),
        "chunked_prefill": int(bool(runtime.get("enable_chunked_context", False))),
        "block_size": build.get("tokens_per_block", 64),
        "quantization": "fp8" if eight else fours.get(said.get("precision", ""), "none"),
        "kv_dtype": "fp8"
        if eight or checkpoint.get("kv_cache_dtype") == "fp8" or said.get("precision") == "fp4"
        else "auto",
        "attention_dp": int(together),
        "adp_timeout_iters": runtime.get("adp_balancing_timeout_iters", 500) if balanced else 0,
        "adp_wait_iters": runtime.get("adp_balancing_batching_wait_iters", 10) if balanced else 0,
        "served": int(model in _ENDPOINTS),
        "evicts": int(runtime.get("batch_scheduler_policy", "max_util") == "max_util"),
        "power_watts": said.get("power_limit"),
        "framework": "TensorRT-LLM",
        "in_python": int(bool(_OF_PYTHON & {*runtime, *build})),
    }


def _of_vllm(said: Settings, model: str) -> Settings | str:
    if "vllm_engine_config" not in said:
        return "another engine"
    engine, harness = said["vllm_engine_config"], said.get("harness_config") or {}
    apart = said.get("vllm_env_config") or {}
    stored = engine.get("quantization", "none")
    if stored == "quark":  # Quark's format is in the folder's name
        stored = "mxfp4" if model.startswith("gpt-oss") else "fp4" if "fp4" in engine["model"] else "fp8"
    return {
        "tp": engine.get("tensor_parallel_size", 1),
        "max_num_seqs": engine.get("max_num_seqs", 256),
        "max_num_batched_tokens": engine.get("max_num_batched_tokens", 0),
        "gpu_memory_utilization": engine.get("gpu_memory_utilization", 0.9),
        "chunked_prefill": int(bool(engine.get("enable_chunked_prefill"))),
        "prefix_caching": int(bool(engine.get("enable_prefix_caching"))),
        "block_size": engine.get("block_size", 16),
        "quantization": stored,
        "kv_dtype": engine.get("kv_cache_dtype", "fp8"),  # the default in AMD's common/config.yaml
        "eager": int(bool(engine.get("enforce_eager"))),
        **_graphs(engine.get("compilation_config") or {}),
        "scheduler_steps": engine.get("num_scheduler_steps", 1),
        # The scheduler of AMD's fork: a step with prompts directly follows another one only if this many wait.
        "prompts_apart": apart.get("VLLM_LLAMA2_MLPERF_MIN_REQUIRE_PREFILL_QUERY", 10)
        if apart.get("VLLM_LLAMA2_MLPERF_SCHED")
        else 0,
        # Its engine of version 1: after a step with prompts, this many steps have none if this many requests run.
        "decodes_between": apart.get("VLLM_SUBSEQUENT_DECODE_STEPS", 0),
        "decodes_between_from": apart.get("VLLM_MIN_REQUEST_DECODE_STEP", 0),
        "devices": harness.get("device_count"),
        "framework": "vLLM",
    }


def _graphs(said: Settings) -> Settings:
    """The largest step with a CUDA graph, from a list of sizes, or a range that starts with the largest."""
    sizes = said.get("cudagraph_capture_sizes") or said.get("cudagraph_capture_range") or []
    largest = [max(size) if isinstance(size, list) else size for size in sizes]
    return {"max_cudagraph_capture_size": max(largest)} if largest else {}


def _of_dictionaries(path: Path) -> Settings:
    """The settings in EXPORTS for an accuracy of 99 % without a power limit."""
    known: dict[str, Any] = {}
    for line in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign):
            _assign(line.targets[0], _value(line.value, known), known)
    exports = known.get("EXPORTS") or {}
    names = sorted(exports, key=lambda name: ("0.999" in name, "MaxQ" in name))
    return exports[names[0]] if names else known.get("base", {})


def _assign(target: ast.expr, value: Any, known: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        known[target.id] = value
    elif isinstance(target, ast.Subscript) and isinstance(held := _value(target.value, known), dict):
        held[_key(target.slice)] = value


def _key(node: ast.expr) -> Any:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.value if isinstance(node, ast.Constant) else ast.unparse(node)


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Dict):
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            found |= (_value(value, known) or {}) if key is None else {_key(key): _value(value, known)}
        return found
    if isinstance(node, ast.Subscript):
        held = _value(node.value, known)
        return held.get(_key(node.slice)) if isinstance(held, dict) else None
    if isinstance(node, ast.Attribute):
        held = known.get(node.value.id) if isinstance(node.value, ast.Name) else None
        return held.get(node.attr, node.attr) if isinstance(held, dict) else node.attr
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, known), _value(node.right, known)
        if isinstance(left, dict) and isinstance(right, dict):
            return left | right
        if isinstance(left, int | float) and isinstance(right, int | float):
            return left * right if isinstance(node.op, ast.Mult) else left + right
    if isinstance(node, ast.Call) and "copy" in ast.unparse(node.func) and node.args:
        held = _value(node.args[0], known)
        return dict(held) if isinstance(held, dict) else held
    return None


def _of_classes(path: Path, system: str) -> Settings:
    """The settings of this system's class, without a power limit unless the system's name contains MaxQ."""
    known: dict[str, Any] = {}
    for file in (path.parents[1] / "__init__.py", path):
        for line in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(line, ast.ClassDef):
                known[line.name] = _class(line, known)
    slow = "maxq" in system.lower()
    wanted = _chips(system)
    for name, said in known.items():
        if not isinstance(said, dict) or "system" not in said or ("MaxQ" in name) != slow or "Triton" in name:
            continue
        if _plain(said["system"]) in _plain(system) or (wanted and _chips(said["system"]) == wanted):
            return said
    return {}


def _class(node: ast.ClassDef, known: dict[str, Any]) -> Settings:
    found: Settings = {}
    for base in node.bases:
        found |= known.get(base.id, {}) if isinstance(base, ast.Name) else {}
    for line in node.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            name, value = line.targets[0].id, _value(line.value, known | found)
            found[name] = (
                found[name] | value if name.startswith("trtllm_") and isinstance(found.get(name), dict) else value
            )
    return found


def _chips(system: str) -> tuple[str, ...]:
    """ "Lenovo_8xH200_TRT" and "KnownSystem.H200_SXM_141GBx8" → ("h200", "", "8")."""
    name = system.lower()
    chip = re.search(r"gh200|h100|h200|b200|l40s|a100", name)
    count = re.search(r"x(\d+)(?:_trt|_maxq|$)", name) or re.search(r"(\d+)x(?:h|l|a|b)", name)
    kind = next((word for word in ("nvl", "pcie", "cts", "144", "96") if word in name), "")
    return (chip[0], kind, count[1]) if chip and count else ()
