"""Asks vLLM itself, in one process: one JSON question a line in, one JSON answer a line out.

A question is {"model": folder, "arguments": {…}}: the engine's configuration is made, no engine. The answer:
{"refused": "" or the error, "effective": what vLLM made of some arguments}.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import contextlib
import json
import os
import sys
from typing import Any


def answer(question: dict[str, Any]) -> dict[str, Any]:
    from vllm.engine.arg_utils import EngineArgs

    try:
        engine = EngineArgs(
            model=question["model"], skip_tokenizer_init=True, load_format="dummy", **question["arguments"]
        )
        config = engine.create_engine_config()
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"[:400], "effective": {}}
    effective = {
        "async_scheduling": config.scheduler_config.async_scheduling,
        "cudagraph_mode": config.compilation_config.cudagraph_mode.name,
        "compilation_mode": int(config.compilation_config.mode),
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "kv_cache_memory_bytes": config.cache_config.kv_cache_memory_bytes,
        "enable_prefix_caching": config.cache_config.enable_prefix_caching,
    }
    return {"refused": "", "effective": effective}


def main() -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
    with contextlib.redirect_stdout(sys.stderr):
        import vllm.engine.arg_utils  # noqa: F401 - seconds
    print("ready", flush=True)
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            said = answer(json.loads(line))
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
