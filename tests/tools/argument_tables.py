"""The tables of programs' arguments (autoscout/line/arguments): read from a program's own parser, classified manually.

    INTERPRETER tests/tools/argument_tables.py --ask PROGRAM > asked.json          where that release is installed
    PYTHONPATH=. python tests/tools/argument_tables.py PROGRAM RELEASE=asked.json …    oldest release first
    PYTHONPATH=. python tests/tools/argument_tables.py --page > docs/lab/arguments.md

PROGRAM is vllm (`vllm serve`), hf-trainer (transformers' TrainingArguments) or deepspeed (its launcher, and the keys of
a ds_config). Existing kinds and values are kept. A new argument gets the kind "", which the tests reject until it is
classified."""

import contextlib
import csv
import json
import sys
import textwrap
from pathlib import Path
from typing import Any, get_args

TABLES = Path(__file__).parents[2] / "autoscout" / "line" / "arguments"
_FIELDS: tuple[str, ...] = ("argument", "kind", "usual", "values", "since", "until")


def of_vllm() -> dict[str, Any]:
    for name in ("torchvision", "torchaudio", "torchcodec"):  # a CPU build may have incompatible ones
        sys.modules[name] = None  # type: ignore
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # type: ignore
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore

    return of_parser(make_arg_parser(FlexibleArgumentParser()))


def of_parser(parser: Any) -> dict[str, Any]:
    """The long names of an argparse parser's arguments, with their defaults; a switch's is None."""
    found = {}
    for action in parser._actions:
        name = next((n for n in action.option_strings if n.startswith("--")), "")
        if name and name != "--help":
            found[name] = action.default if action.nargs != 0 and not isinstance(action.default, bool) else None
    return found


def of_hf_trainer() -> dict[str, Any]:
    import dataclasses

    from transformers import TrainingArguments  # type: ignore

    fields = dataclasses.fields(TrainingArguments)
    return {
        f"--{f.name}": None if f.default is dataclasses.MISSING or f.default is False else f.default for f in fields
    }


def of_deepspeed() -> dict[str, Any]:
    import argparse

    from deepspeed.launcher import runner  # type: ignore
    from deepspeed.runtime import config, constants  # type: ignore  # noqa: F401  config defines the models
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel  # type: ignore

    asked: list[argparse.ArgumentParser] = []
    argparse.ArgumentParser.parse_args = lambda self, *_, **__: asked.append(self)  # type: ignore
    with contextlib.suppress(Exception):  # it continues with the missing arguments
        runner.parse_args([])
    found = of_parser(asked[0])
    named = vars(constants)
    whole = {key: name for key, name in named.items() if isinstance(name, str) and f"{key}_DEFAULT" in named}
    found |= {
        name: named[f"{key}_DEFAULT"] for key, name in whole.items() if key.isupper() and name not in _IN_SECTIONS
    }
    for model, section in _SECTIONS.items():
        fields = next(m for m in _below(DeepSpeedConfigModel) if m.__name__ == model).model_fields
        found |= {f"{section}.{name}": field.get_default() for name, field in fields.items()}
    return found


def _below(model: Any) -> list[Any]:
    return [each for one in model.__subclasses__() for each in (one, *_below(one))]


# Sections of a ds_config by the class that reads them. DeepSpeed's constants list their keys too, without sections.
_SECTIONS = {
    "DeepSpeedZeroConfig": "zero_optimization",
    "DeepSpeedZeroOffloadParamConfig": "zero_optimization.offload_param",
    "DeepSpeedZeroOffloadOptimizerConfig": "zero_optimization.offload_optimizer",
    "DeepSpeedFP16Config": "fp16",
    "DeepSpeedBF16Config": "bf16",
    "TPTrainingConfig": "tensor_parallel",
    "CompileConfig": "compile",
    "CommsLoggerConfig": "comms_logger",
    "HybridEngineConfig": "hybrid_engine",
}
_IN_SECTIONS = (
    *("enabled", "immediate_grad_update", "loss_scale", "auto_cast", "initial_scale_power", "loss_scale_window"),
    *("hysteresis", "consecutive_hysteresis", "min_loss_scale", "log_level", "pipeline_stage"),
    *("fp16_master_weights_and_grads", "bf16_master_weights_and_grads", "bf16_optimizer_states"),
    *("grad_accum_dtype", "param_dtype", "buffer_dtype", "keep_in_fp32_modules", "tag_validation", "load_universal"),
    *("use_node_local_storage",),
)
_PROGRAMS = {"vllm": of_vllm, "hf-trainer": of_hf_trainer, "deepspeed": of_deepspeed}


def table(program: str, releases: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """The rows of a program's table. `releases`: each release's arguments and defaults, oldest first."""
    path = TABLES / f"{program}.csv"
    before = {row["argument"]: row for row in csv.DictReader(path.read_text().splitlines())} if path.exists() else {}
    order = [*releases]
    rows = []
    for name in sorted({name for known in releases.values() for name in known}):
        there = [release for release in order if name in releases[release]]
        usual = releases[there[-1]][name]
        rows.append(
            {
                "argument": name,
                "kind": before.get(name, {}).get("kind", ""),
                "usual": str(usual) if isinstance(usual, str | int | float) and str(usual) else "",
                "values": before.get(name, {}).get("values", ""),
                "since": "" if there[0] == order[0] else there[0],
                "until": "" if there[-1] == order[-1] else there[-1],
            }
        )
    return rows


_HEAD = """# Arguments by kind

Made by `tests/tools/argument_tables.py --page` from the tables in `autoscout/line/arguments`, which were asked of each
program's own parser. What the kinds mean stands in `autoscout/line/kinds.py`. The tests in `test_kinds_of_arguments.py`
give every argument a value that is not its default, and hold that it is exported as it was measured, or named.
An argument that no table has is named by `check` until the job says `launch.neutral`.
"""


def page() -> str:
    from autoscout.line.kinds import Kind  # not installed where --ask runs

    tables = {path.stem: [*csv.DictReader(path.read_text().splitlines())] for path in sorted(TABLES.glob("*.csv"))}
    found = [_HEAD, f"| kind | {' | '.join(tables)} |", f"|---|{'---|' * len(tables)}"]
    for kind in get_args(Kind):
        counts = [sum(row["kind"] == kind for row in rows) for rows in tables.values()]
        found.append(f"| {kind} | {' | '.join(map(str, counts))} |")
    found += ["", "## By release", "", "| program | release | new in it | last in it |", "|---|---|---|---|"]
    for program, rows in tables.items():
        releases = sorted({row[end] for row in rows for end in ("since", "until") if row[end]}, key=_numbers)
        for release in releases:
            new, last = (sum(row[end] == release for row in rows) for end in ("since", "until"))
            found.append(f"| {program} | {release} | {new} | {last} |")
    for kind, title in (("refused", "Refused"), ("model", "Of the model")):
        found += ["", f"## {title}"]
        for program, rows in tables.items():
            if names := [f"`{row['argument']}`" for row in rows if row["kind"] == kind]:
                found += ["", textwrap.fill(f"**{program}**: {', '.join(names)}.", 120, break_on_hyphens=False)]
    return "\n".join([*found, ""])


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


if __name__ == "__main__":
    if sys.argv[1] == "--page":
        print(page(), end="")
    elif sys.argv[1] == "--ask":
        print(json.dumps(_PROGRAMS[sys.argv[2]](), default=lambda _: None))
    else:
        asked = {release: json.loads(Path(path).read_text()) for release, path in (w.split("=") for w in sys.argv[2:])}
        with open(TABLES / f"{sys.argv[1]}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, [*_FIELDS], lineterminator="\n")
            writer.writeheader()
            writer.writerows(table(sys.argv[1], asked))
