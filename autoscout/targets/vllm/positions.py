"""How long a request a served model's positions reach. vLLM refuses an engine for longer ones (config/model.py,
_get_and_verify_max_len)."""

from collections.abc import Iterator
from pathlib import Path

from autoscout.job.hf_config import part
from autoscout.targets.vllm.kept import longest
from autoscout.targets.vllm.said import said_by
from kb import door
from kb.records import Job

_ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_NOT_SCALED = ("default", "llama3")  # rope types whose factor is in max_position_embeddings already


def position_problems(job: Job) -> Iterator[str]:
    """Nothing where the model's folder is not readable here: then its engine says it."""
    reach = _reach(Path(job.launch.model_path)) if job.launch.model_path else 0
    if not reach or job.launch.environment.get(_ALLOWED) == "1":
        return
    if job.launch.current and any(flag.startswith("--hf-overrides") for flag in said_by(job)):
        return
    if (length := longest(job)) > reach:
        yield (
            f"the longest request takes {length} tokens, prompt and answer in whole blocks, and launch.model_path's "
            f"model has positions for {reach}: vLLM refuses to start; ask for shorter ones in [traffic] (or in "
            f"--max-model-len of launch.current), or scale its positions by --hf-overrides there"
        )


def _reach(folder: Path) -> int:
    """Tokens; 0 if unknown. Some versions multiply by the factor of scaled positions, others find it included: the
    larger counts."""
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
