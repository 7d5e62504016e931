"""The KV cache's tier in host memory that a line asks for: by --kv-offloading-size, or by the connector itself."""

import json
from collections.abc import Iterator, Mapping

from autoscout.job import latent
from kb.records import Job, shape

_BLOCK = 16  # tokens, unless the line says otherwise
_SIZE, _EXTRA = "--kv-offloading-size", "--kv-transfer-config.kv_connector_extra_config"


def tier_problems(job: Job, flags: Mapping[str, list[str]]) -> Iterator[str]:
    """Yields a sentence if the tier is smaller than a block. `flags`: the line's (line_flags.given_flags)."""
    found = _tier(flags)
    if found is None:
        return
    said, size = found
    tokens = int(flags.get("--block-size", [str(_BLOCK)])[0])
    byte = 4 if job.model.dtype == "fp32" else 2
    m = shape(job.model)
    block = tokens * m.layers * latent.kept_of_a_token(m) * byte
    if flags.get("--kv-cache-dtype", ["auto"])[0].startswith("fp8"):
        block /= 2
    if size < block:
        yield (
            f"launch.current: {said} is {size / 2**20:.3g} MiB of host memory, but a block of {tokens} tokens takes "
            f"{block / 2**20:.3g} MiB, so that this tier holds nothing; give it gigabytes, or leave it out"
        )


def _tier(flags: Mapping[str, list[str]]) -> tuple[str, float] | None:
    """Returns (the setting, its bytes); None without one that can be read."""
    try:
        if _SIZE in flags:
            return f"{_SIZE} {flags[_SIZE][0]}", float(flags[_SIZE][0]) * 2**30
        size = json.loads(flags[_EXTRA][0])["cpu_bytes_to_use"]
        return f"cpu_bytes_to_use {size}", float(size)
    except (KeyError, IndexError, TypeError, ValueError):
        return None
