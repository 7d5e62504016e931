"""Queries vLLM, without a GPU: which arguments the engine accepts, and how it interprets the arguments of our servers.

    audit_vllm.py < {"config": {…}, "gpu": {…} or null, "launches": [{"max_num_seqs": 16, …}, …]}

`config`: the model's config.json. `gpu`: arguments of foreign_gpu.become(). The last output line is an object:
`arguments` (--flag → "default of choices"), `helps`, `fields` (EngineArgs.field → its default), and `answers`, one for
each launch: `refused` ("" or the reason), `changed` (name → [given value, resulting value]) and `said` (warnings). The
engine's configuration is created and validated as in a server, but no model is built."""

import contextlib
import dataclasses
import json
import logging
import os
import re
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "running" / "worker"))
sys.path.insert(0, str(Path(__file__).parent / "shadow"))

import audit_answers
import effective
import foreign_gpu
import serve

# Arguments → their names in the engine's configuration, if these differ.
_CALLED = {"kv_cache_dtype": "cache.cache_dtype", "attention_backend": "attention.backend"}
_SAID = 200  # maximum length of a warning


class Said(logging.Handler):
    """Collects warnings about one configuration."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(" ".join(record.getMessage().split())[:_SAID])


def load(device: str) -> None:
    """Imports the engine's modules as on a CPU (on a GPU they would look for kernels), then vLLM's CUDA platform."""
    serve.load(device)
    foreign_gpu.without_kernels()


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _actions() -> list[Any]:
    """Returns the actions of vLLM's argument parser; [] if the parser needs a device."""
    from vllm.engine.arg_utils import EngineArgs

    # building the parser may query the platform (which fails without a device), or exit
    with contextlib.suppress(Exception, SystemExit):
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        return EngineArgs.add_cli_args(FlexibleArgumentParser())._actions
    return []


def _fields() -> dict[str, str]:
    from vllm.engine.arg_utils import EngineArgs

    found = {}
    for field in dataclasses.fields(EngineArgs):
        default = None if field.default is dataclasses.MISSING else field.default
        found[f"EngineArgs.{field.name}"] = audit_answers.written(default, None, _plain)
    return found


def _flat(launch: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments with dotted names as in effective.py: {"speculative_config": {"method": "ngram"}} becomes
    {"speculative.method": "ngram"}."""
    found: dict[str, Any] = {}
    for name, value in launch.items():
        if isinstance(value, dict):
            found |= {f"{name.removesuffix('_config')}.{inner}": each for inner, each in value.items()}
        else:
            found[_CALLED.get(name, name)] = value
    return found


def _spelled(value: Any) -> str:
    """Converts a value to text, so that a list equals a tuple, and a dtype its name."""
    return re.sub(r"\W+", " ", str(value).replace("torch.", "")).strip()


def pretend_kernels() -> None:
    """Pretends that flash attention's extensions exist: configuring needs their version, which CPU builds lack."""
    stub: Any = types.ModuleType("vllm.vllm_flash_attn")
    stub.__path__, stub.__file__ = [], "flash_attn"
    stub.__getattr__ = lambda name: None if name.startswith("__") else (lambda *_, **__: True)
    sys.modules.setdefault("vllm.vllm_flash_attn", stub)
    sys.modules.setdefault("vllm.vllm_flash_attn.flash_attn_interface", stub)


def _answer(launch: dict[str, Any], model: str, said: Said) -> dict[str, Any]:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    said.texts.clear()
    try:
        arguments = EngineArgs(model=model, skip_tokenizer_init=True, **launch)
        config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    except (Exception, SystemExit) as error:
        return audit_answers.refusal(error)
    values = effective.of_config(config)["values"]
    became = {**{name.partition(".")[2]: value for name, value in values.items()}, **values}
    changed = {
        name: [given, became[name]]
        for name, given in _flat(launch).items()
        if name in became and _spelled(became[name]) != _spelled(effective.plain(given))
    }
    return {"refused": "", "changed": changed, "said": sorted(set(said.texts))}


def main() -> None:
    asked, answer = audit_answers.asked()
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    load("none")
    if asked["gpu"]:
        pretend_kernels()
        foreign_gpu.become(**asked["gpu"])
    said = Said()
    logging.getLogger("vllm").addHandler(said)
    with tempfile.TemporaryDirectory(prefix="autoscout-model-") as folder:
        Path(folder, "config.json").write_text(json.dumps(asked["config"]))
        taken = {**audit_answers.described(audit_answers.by_flag(_actions()), _plain), "fields": _fields()}
        answered = [_answer(launch, folder, said) for launch in asked["launches"]]
    answer({**taken, "answers": answered})


if __name__ == "__main__":
    main()
