"""Queries Megatron-core, without a GPU: which arguments it accepts, and how it interprets the flags of our launches.

    audit_engine.py < {"path": "", "launches": [{"flags": {"--bf16": true}, "world": 8, "variables": {}}, …]}

`path`: a checkout of Megatron-LM in place of the installed `megatron.training`. The last output line is an object:
`arguments` (--flag → "default of choices", {} without a parser), `helps`, `fields` (Class.field → default of choices),
and `answers`, one for each launch: `refused` ("" or the reason), `changed` (name → [given value, resulting value]) and
`said` (the warnings). A launch is parsed and validated like in Megatron-LM before training; in a release without a
parser, only by the configuration classes. No model is built. The engine is made to assume that Transformer Engine is
installed and that devices have compute capability 9.0."""

import argparse
import dataclasses
import importlib
import importlib.util
import os
import sys
import types
import typing
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "running" / "worker"))

import audit_answers

# Required flags that do not come from a configuration; the audit uses these values.
_USERS_FLAGS = ("--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "3", "--lr", "1e-5")
_CAPABILITY = (9, 0)


def words(flags: dict[str, Any]) -> list[str]:
    found = []
    for flag, value in flags.items():
        found += [flag] if value is True else [flag, *(str(v) for v in (value if isinstance(value, list) else [value]))]
    return found


def plain(value: Any) -> Any:
    """Converts the value to JSON types, spelled as on a command line."""
    if isinstance(value, str):
        return (
            value.removeprefix("torch.").replace("bfloat16", "bf16").replace("float32", "fp32").replace("uint8", "fp8")
        )
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return plain(value[0]) if len(value) == 1 else [plain(v) for v in value]
    return plain(getattr(value, "__name__", None) or getattr(value, "name", None) or str(value))


def pretend_transformer_engine() -> None:
    """Makes Megatron decide as if Transformer Engine 2.11 were installed."""
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.moe import moe_utils
    from packaging.version import Version

    for name in (
        "permute",
        "permute_with_probs",
        "sort_chunks_by_index",
        "sort_chunks_by_index_with_probs",
        "unpermute",
    ):
        if getattr(moe_utils, f"fused_{name}", None) is None:
            setattr(moe_utils, f"fused_{name}", object())
    utils._te_version = Version("2.11.0")
    rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb or object()
    for name in ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.optimizers"):
        sys.modules.setdefault(name, types.ModuleType(name))
    fused: Any = sys.modules["transformer_engine.pytorch.optimizers"]
    names = ("master_weight_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "use_decoupled_grad", "store_param_remainders")
    made: dict[str, Any] = {}
    # Megatron-core looks at the parameter names of this class's __init__.
    exec(f"class FusedAdam:\n    def __init__(self, {', '.join(names)}): pass", made)
    fused.FusedAdam = made["FusedAdam"]


def _parser(path: str) -> Any:
    """Returns the module with Megatron-LM's arguments; None if there is none. The module is loaded without its package,
    because the package imports tokenizers."""
    if path:
        folder = Path(path, "megatron", "training")
    else:
        found = importlib.util.find_spec("megatron")
        places = [Path(place, "training") for place in (found.submodule_search_locations if found else None) or ()]
        folder = next((place for place in places if (place / "arguments.py").is_file()), None)
        if folder is None:
            return None
    package: Any = types.ModuleType("megatron.training")
    package.__path__ = [str(folder)]
    for name in ("get_args", "get_timers", "get_adlr_autoresume", "get_tokenizer", "get_signal_handler"):
        setattr(package, name, None)
    sys.modules["megatron.training"] = package
    return importlib.import_module("megatron.training.arguments")


def _arguments(module: Any) -> dict[str, argparse.Action]:
    """Returns --flag → its argparse action. The parser is reused for all launches, since building it is slow."""
    parser = module.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    module.add_megatron_arguments = lambda _: parser
    return audit_answers.by_flag(parser._actions)


def _fields() -> dict[str, str]:
    import configs

    found = {}
    for kind in configs._CLASSES:
        name = kind.__name__.removeprefix("MLA")
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            default = None if field.default is dataclasses.MISSING else field.default
            choices = [c for part in _parts(hints[field.name]) for c in typing.get_args(part) if _literal(part)]
            found[f"{name}.{field.name}"] = audit_answers.written(default, choices, plain)
    return found


def _parts(hint: Any) -> list[Any]:
    return [hint] if _literal(hint) else list(typing.get_args(hint))


def _literal(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


def _parsed(module: Any, launch: dict[str, Any], actions: dict[str, argparse.Action]) -> dict[str, list[Any]]:
    """Returns argument → [given value, resulting value], for the launch's arguments that validation or the resulting
    configuration changed."""
    if lacking := [flag for flag in launch["flags"] if flag not in actions]:
        raise ValueError(f"there is no argument {', '.join(lacking)}")
    sys.argv = ["pretrain_gpt.py", *words(launch["flags"]), *_USERS_FLAGS]
    arguments = module.parse_args()
    given = {actions[flag].dest: plain(getattr(arguments, actions[flag].dest)) for flag in launch["flags"]}
    module.validate_args(arguments, {})
    config = module.core_transformer_config_from_args(arguments)
    became = {name: plain(getattr(config, name, getattr(arguments, name, None))) for name in given}
    return {name: [value, became[name]] for name, value in given.items() if became[name] != value}


def _built(launch: dict[str, Any]) -> dict[str, list[Any]]:
    """Like `_parsed`, but validates only by the configuration classes that our worker uses."""
    import configs

    given = configs.arguments(launch["flags"])
    built = [configs.transformer(given, False), configs.ddp(given), configs.optimizer(given, 1e-5)]
    became = {name: plain(getattr(part, name)) for part in built for name in given if hasattr(part, name)}
    return {name: [plain(given[name]), value] for name, value in became.items() if plain(given[name]) != value}


def _answer(module: Any, launch: dict[str, Any], actions: dict[str, argparse.Action]) -> dict[str, Any]:
    before = dict(os.environ)
    # validation needs this variable, and a launch on CPUs does not set it
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    os.environ.update(WORLD_SIZE=str(launch["world"]), RANK="0", LOCAL_RANK="0", **launch["variables"])
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            # these warnings concern Python versions, not arguments
            warnings.filterwarnings("ignore", message=".*in Python 3")
            changed = _built(launch) if module is None else _parsed(module, launch, actions)
        said = sorted({" ".join(str(w.message).split()) for w in warned})
        return {"refused": "", "changed": changed, "said": said}
    except (Exception, SystemExit) as error:  # argparse raises SystemExit
        return audit_answers.refusal(error)
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    asked, answer = audit_answers.asked()
    if asked["path"]:
        sys.path.insert(0, asked["path"])
    import torch
    import train

    train.load("cpu")
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.get_device_capability = lambda *a, **k: _CAPABILITY
    cuda.get_device_properties = lambda *a, **k: types.SimpleNamespace(major=_CAPABILITY[0], minor=_CAPABILITY[1])
    module = _parser(asked["path"])
    actions = _arguments(module) if module else {}
    pretend_transformer_engine()
    taken = {**audit_answers.described(actions, plain), "fields": _fields()}
    answer({**taken, "answers": [_answer(module, launch, actions) for launch in asked["launches"]]})


if __name__ == "__main__":
    main()
