"""Limits on the length of requests by the number of positions of a model. vLLM refuses to start with a larger maximum
length (config/model.py, _get_and_verify_max_len)."""

from collections.abc import Iterator
from pathlib import Path

from autoscout.job.hf_config import part
from autoscout.job.latent import kept_of_a_token
from autoscout.job.presets import sizes_of
from autoscout.line.kinds import arguments
from autoscout.simulate.serving.weight_formats import KV_BYTES
from autoscout.space.attributes import attributes_of
from autoscout.targets.current_launch import NUMBER, line_of
from autoscout.targets.vllm.flag_kinds import PROGRAM
from autoscout.targets.vllm.kept import longest, stated_length
from autoscout.targets.vllm.line_flags import count_of, given_flags, model_named
from kb import door
from kb.records import Job, shape

_ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_NOT_SCALED = ("default", "llama3")  # rope types whose max_position_embeddings already includes the factor


def position_problems(job: Job) -> Iterator[str]:
    """Yields a sentence if requests are longer than the model's positions allow. Without a readable model folder, only
    vLLM checks this."""
    reach = _reach(Path(job.launch.model_path)) if job.launch.model_path else 0
    if not reach or _lengthened(job):
        return
    if (length := longest(job)) > reach:
        yield (
            f"the longest request takes {length} tokens, prompt and answer in whole blocks, but the model in "
            f"launch.model_path has positions for {reach}, so vLLM refuses to start; reduce the lengths in "
            "[traffic] (or --max-model-len in launch.current), or scale the model's positions with "
            "--hf-overrides in launch.current"
        )


def not_starting(job: Job) -> Iterator[str]:
    """Yields a sentence if the line does not set the maximum length, and a request of the model's maximum length needs
    more KV cache than an engine can have. vLLM then exits at its start (v1/core/kv_cache_utils.py,
    check_enough_kv_cache_memory). The model's maximum length is that of its folder, or of the published model of this
    name."""
    given, known = given_flags(job), attributes_of(job)
    reach = _reach(Path(job.launch.model_path)) if job.launch.model_path else _published(job)
    if 0 < reach < stated_length(job) and not job.launch.model_path and not _lengthened(job):
        yield (
            f"launch.current does not start: it has --max-model-len {stated_length(job)}, but the model has "
            f"positions for {reach}"
        )
    if not reach or not known["cuda"] or given.keys() & {"--max-model-len", "--kv-cache-memory-bytes"}:
        return
    tp, pp, dp = (
        count_of("".join(given.get(f"--{of}-parallel-size", []))) or 1 for of in ("tensor", "pipeline", "data")
    )
    # data parallel engines split the experts among themselves
    weights = known["weights_gib"] - known["expert_gib"] * (1 - 1 / dp)
    width = KV_BYTES.get("".join(given.get("--kv-cache-dtype", [])), known["dtype_bytes"])
    tokens = known["layers"] * reach - known["windowed_layers"] * max(reach - known["window"], 0)
    heads = 1 if job.model.latent else min(tp, known["kv_heads"])
    needed = tokens * kept_of_a_token(shape(job.model)) * width / heads / pp / 2**30
    share = "".join(given.get("--gpu-memory-utilization", [])) or arguments(PROGRAM)["--gpu-memory-utilization"].usual
    room = known["memory_gib"] * float(share) - weights / (tp * pp) if NUMBER.fullmatch(share) else needed
    if needed > room:
        yield (
            f"launch.current does not start: without --max-model-len vLLM takes the model's {reach} "
            f"positions, and a request of that length needs {needed:.1f} GiB of KV cache, but at most "
            f"{max(room, 0):.1f} GiB are left after the weights; experiments and exports use --max-model-len "
            f"{longest(job)}"
        )


def _lengthened(job: Job) -> bool:
    """Whether the line lets vLLM accept longer requests than the model's positions allow."""
    overrides = ("--hf-overrides", "--rope-scaling")
    scaled = job.launch.current and any(flag.startswith(overrides) for flag in given_flags(job))
    return bool(scaled) or job.launch.environment.get(_ALLOWED) == "1"


def _published(job: Job) -> int:
    """Returns the maximum length of the published model that the line names; 0 if unknown."""
    return int(sizes_of(model_named(line_of(job))).get("context", 0))


def _reach(folder: Path) -> int:
    """Returns the maximum length of a request in tokens, from the model's config.json; 0 if unknown. Some versions of
    vLLM multiply the stated length by the scaling factor of positions, others assume that it includes this factor.
    Returns the larger result."""
    try:
        config = door.parsed_json((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return 0
    config = config if isinstance(config, dict) else {}
    config = {**config, **part(config, "text_config")}
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or isinstance(positions, bool):
        return 0
    scaled = part(config, "rope_scaling") or part(config, "rope_parameters")
    plain = str(scaled.get("rope_type") or scaled.get("type") or "default") in _NOT_SCALED
    factor = scaled.get("factor")
    return positions if plain or not isinstance(factor, int | float) else int(positions * max(factor, 1))
