"""Converts (job, configuration) to the arguments of vLLM's engine, as data under vLLM's own names."""

import copy
import json
import math
import sys
from collections.abc import Callable
from typing import Any

from autoscout.job.words import listed
from autoscout.running.cluster import devices
from autoscout.running.cluster.devices import used_nodes
from autoscout.space.attributes import attributes_of
from autoscout.targets.jobs import declared
from autoscout.targets.vllm.kept import RAY, dtype_of, kept_arguments, longest
from autoscout.targets.vllm.line_flags import flag_of, given_flags
from kb.records import AutoscoutError, Configuration, Job, Value, shape

SERVED_NAME = "autoscout"
_MIB = 2**20
_LOOKUP = 4  # maximum length of the n-grams that speculative decoding looks up in the prompt
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
_HOSTS = ("--nnodes", "--data-parallel-address")  # flags of a user's own multi-node setup, which does not use Ray


def engine_arguments(job: Job, configuration: Configuration) -> dict[str, Any]:
    """Returns EngineArgs's keyword arguments for the job and the configuration, without the model's path. The maximum
    request length is the job's, or the user's line's if longer. A knob of the user's own catalog sets the argument that
    its `sets` names."""
    return engine_arguments_of(job)(configuration)


def engine_arguments_of(job: Job) -> Callable[[Configuration], dict[str, Any]]:
    """Returns a function that does the same as `engine_arguments` for many configurations of one job. Values that
    depend only on the job are computed once."""
    of_job: dict[str, Any] = {**kept_arguments(job), "max_model_len": longest(job), "dtype": dtype_of(job)}
    of_guesses = of_job.pop("speculative_config", {})
    # Uses the full catalog, not the one adapted to the installed version, because the configuration may have been
    # measured with a different version.
    fields = {knob.name: knob.sets for knob in declared(job).knob}

    def arguments_of(configuration: Configuration) -> dict[str, Any]:
        arguments = copy.deepcopy(of_job)
        for name, value in configuration.knobs.items():
            if name not in fields or _is_default(name, value):
                continue
            if name in ("spec_until", "kv_disk", "prefill", "prefill_tp") or fields[name].startswith("the "):
                continue
            argument, *inner = fields[name].split(".")
            if inner:
                arguments.setdefault(argument, {})[inner[0]] = value
            else:
                arguments[argument] = value * _MIB if name == "kv_cache_mib" else value
        if of_guesses and "spec" not in configuration.knobs:  # the space has no knob for the line's speculative method
            arguments["speculative_config"] = of_guesses
        elif "speculative_config" in arguments:
            arguments["speculative_config"] |= _guessing(job, configuration.knobs)
            if configuration.knobs["spec"] in _methods_given(job):
                arguments["speculative_config"] |= {n: v for n, v in of_guesses.items() if n != "model"}
        if configuration.knobs.get("kv_disk"):
            arguments["kv_transfer_config"] = _files(job.launch.kv_folder)
        return arguments | placement(job, configuration)

    return arguments_of


def _methods_given(job: Job) -> list[str]:
    """Returns the speculative decoding method in the user's line. With only a draft model, vLLM chooses the method."""
    given = given_flags(job)
    found = [job.launch.draft.method] if job.launch.draft else []
    return given.get("--speculative-config.method", found)


def _guessing(job: Job, knobs: dict[str, Value]) -> dict[str, Any]:
    """Returns the settings of speculative decoding other than the method and the usual number of draft tokens."""
    found: dict[str, Any] = {}
    if knobs["spec"] == "ngram":
        found |= {} if "ngram" in _methods_given(job) else {"prompt_lookup_max": _LOOKUP}
    elif job.launch.draft and job.launch.draft.model:
        found["model"] = job.launch.draft.model
    if until := int(knobs.get("spec_until", 0)):
        most = int(knobs["max_num_seqs"])
        found["num_speculative_tokens_per_batch_size"] = [[1, until, knobs["spec_tokens"]], [until + 1, most, 0]]
    return found


def _files(folder: str) -> dict[str, Any]:
    """Returns the settings for a KV cache tier on disk, which extends the tier in host memory (of size
    kv_offloading_size)."""
    tiers = [{"type": "fs", "root_dir": folder}]
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "secondary_tiers": tiers},
    }


def placement(job: Job, configuration: Configuration) -> dict[str, Any]:
    """Returns engine arguments that place ranks on several nodes. vLLM then uses a Ray cluster, which the user must
    have started on the nodes (`ray start`), unless the user's line has its own multi-node setup without Ray."""
    given = given_flags(job)
    ray = not any(flag in given for flag in _HOSTS) or any(given.get(flag_of(name)) == ["ray"] for name in RAY)
    used = [node.count for node in used_nodes(job, configuration)]
    ranks, engines = engine_size(configuration), int(configuration.knobs.get("dp", 1))
    if ranks > max(used):
        spread: dict[str, Any] = {"distributed_executor_backend": "ray"} if ray else {}
    elif over_nodes(job, configuration):
        spread = {"data_parallel_size_local": min(used) // ranks}
    else:
        return {"data_parallel_size_local": engines} if "--data-parallel-size-local" in given else {}
    return spread | ({"data_parallel_backend": "ray"} if engines > 1 and ray else {})


def over_nodes(job: Job, configuration: Configuration) -> bool:
    """Whether the configuration needs more devices than a node has."""
    return world_size(configuration) > max(node.count for node in used_nodes(job, configuration))


def flags(arguments: dict[str, Any]) -> dict[str, Value | list[str]]:
    """Converts arguments to flags of `vllm serve`: --no-… for False, JSON for nested values, True for a bare flag."""
    found: dict[str, Value | list[str]] = {}
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            found[flag if value else "--no-" + flag[2:]] = True
        else:
            found[flag] = json.dumps(value) if isinstance(value, dict) else value
    return found


def serve_command(job: Job, model: str, arguments: dict[str, Any], port: int) -> list[str]:
    """Returns the command `vllm serve` with the job's interpreter, reachable only from this machine."""
    words = [*job.launch.command_prefix, job.launch.python or sys.executable, "-m", "vllm.entrypoints.cli.main"]
    words += ["serve", model, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", SERVED_NAME]
    for flag, value in flags(arguments).items():
        words += [flag] if value is True else [flag, *map(str, value if isinstance(value, list) else [value])]
    return words


def world_size(configuration: Configuration) -> int:
    return engine_size(configuration) * int(configuration.knobs.get("dp", 1))


def engine_size(configuration: Configuration) -> int:
    """Returns the number of devices of an engine."""
    return math.prod(int(configuration.knobs.get(name, 1)) for name in ("tp", "pp"))


def environment_variables(job: Job) -> dict[str, str]:
    """Returns the environment variables for experiments and exports, including the user's."""
    if devices.device_kind(job) == "cuda":
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | job.launch.environment
    # One thread per rank, not bound to a core: two threads that spin on busy cores are twenty times slower.
    variables = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    # With a single rank, the engine computes in its own process; two processes would spin waiting for each other.
    alone = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if job.devices == 1 else {}
    return variables | alone | job.launch.environment


def launcher(job: Job) -> str:
    """Returns "warm" (the engine runs in a fork of a process with all imports), "reuse", "serve" or "replay". "auto" is
    warm for one rank on CPUs, else serve.

    Errors: AutoscoutError (exit 2) for torchrun, and for warm or reuse if an engine has several processes."""
    chosen = job.launch.launcher
    alone = devices.device_kind(job) == "cpu" and job.devices == 1
    if chosen == "torchrun":
        raise AutoscoutError('launch.launcher: "torchrun" is for training; set "warm", "serve" or "auto"', 2)
    if chosen in ("warm", "reuse") and not alone:
        raise AutoscoutError(f'launch.launcher: "{chosen}" serves on one CPU rank only; use "serve" or "auto"', 2)
    if chosen != "auto":
        return chosen
    return "warm" if alone else "serve"


def model_config(job: Job) -> dict[str, Any]:
    """Returns the config.json of a Llama or Qwen3-MoE model of the job's shape, for random weights. Errors:
    AutoscoutError (exit 2) for an unsupported shape."""
    if why := why_not_made(job):
        raise AutoscoutError(why, 2)
    m = shape(job.model)
    config: dict[str, Any] = {
        "architectures": ["Qwen3MoeForCausalLM" if m.experts else "LlamaForCausalLM"],
        "model_type": "qwen3_moe" if m.experts else "llama",
        "hidden_act": "silu",
        "hidden_size": m.hidden,
        "num_hidden_layers": m.layers,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
        "head_dim": m.head_dim,
        "intermediate_size": m.ffn,
        "vocab_size": m.vocab,
        "tie_word_embeddings": m.tied,
        "max_position_embeddings": max(4096, attributes_of(job)["model_len"]),
        "rms_norm_eps": 1e-5,
        "torch_dtype": _DTYPES[m.dtype],
    }
    if m.experts:
        config |= {
            "num_experts": m.experts,
            "num_experts_per_tok": m.topk,
            "moe_intermediate_size": m.expert_ffn,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config


def why_not_made(job: Job) -> str:
    """Returns why no model of the job's shape can be created with random weights; "" if it can."""
    m = shape(job.model)
    has = {"latent attention": m.latent, "shared experts": m.shared_ffn, "first layers without experts": m.dense_layers}
    has["windows of attention"] = m.window
    has[f"weights in {m.stored}"] = m.stored
    other = listed([what for what, size in has.items() if size])
    if not other:
        return ""
    here = f"{job.name}: AutoScout cannot make a model with {other} and random weights"
    return f"{here}; set launch.model_path to the folder of such a model"


def _is_default(name: str, value: Value) -> bool:
    """Whether a knob's value stands for vLLM's default. The argument is then omitted, because no value on the command
    line means the default."""
    return (
        (name in ("spec", "quantization") and value == "none")
        or (name == "kv_offload" and not value)
        or (name == "attention" and value == "auto")
    )
