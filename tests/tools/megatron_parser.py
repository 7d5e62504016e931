"""Compares how Megatron-LM's own argument code and our worker interpret the flags that we export.

    python tests/tools/megatron_parser.py CHECKOUT     runs Megatron-LM's code (core_v0.16.1) and writes the fixture
    python tests/tools/megatron_parser.py              the table of fields of the fixture and our worker

The wheel of megatron-core has no `megatron/training`, so its results are recorded with the flags;
tests/autoscout/test_megatron_lm.py compares the worker with them in every run."""

import ast
import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.megatron import arguments
from autoscout.targets.megatron.worker.audit_engine import pretend_transformer_engine, words
from autoscout.targets.target import shipped
from kb.records import Cluster, Configuration, Job, Node, SpaceLimits

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "fixtures" / "recorded" / "megatron-lm.json"
WORKER = ROOT / "autoscout" / "targets" / "megatron" / "worker"
VERSION = "core_v0.16.1"
JOBS = {"llama-3.2-3b": 16, "qwen3-30b-a3b": 16, "tiny-gpt-cpu": 8, "tiny-moe-cpu": 8, "../spaces/own-knob": 8}
JOBS |= {"deepseek-v2-lite": 8}
JOBS |= {"llama-3.2-3b+": 24, "qwen3-30b-a3b+": 24}  # +: with all knobs that a job must enable explicitly
# Fields that only the user knows; the worker has synthetic batches and small steps.
OF_THE_PERSON = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "3", "--lr", "1e-5"]
# Intended differences between the worker and Megatron-LM, with reasons.
INTENDED = {
    "init_method": "the worker's weights are drawn by name, so that all layouts start from the same model",
    "output_layer_init_method": "the same",
    "embedding_init_method": "the same",
    "deallocate_pipeline_outputs": "gloo may still be sending what is freed (CPU ranks with overlapped sends only)",
}
# where initial weights are created, which weights.py overwrites: CPU ranks create them on the CPU
UNSEEN = {"use_cpu_initialization"}


@functools.cache
def job(name: str) -> Job:
    found = load_job(str(ROOT / "fixtures" / "jobs" / f"{name.removesuffix('+')}.toml"))
    if name.endswith("+"):
        asking = [knob.name for knob in shipped(found.target).knob if knob.asks]
        h100 = Cluster(nodes=[Node(device="h100", count=8)])
        launch = msgspec.structs.replace(found.launch, transformer_engine=True)
        fix: dict = {"vpp": 1, "ar_method": "block", "mbs": 1, "distopt": True, "ce_fusion": False, "sp": False}
        limits = SpaceLimits(fix=fix if found.model.experts == 0 else fix | {"etp": 1, "tp": 1}, allow=asking)
        return msgspec.structs.replace(found, launch=launch, cluster=h100, space=limits)
    if any(node.device != "cpu" for node in found.cluster.nodes):  # all knobs that Transformer Engine makes available
        launch = msgspec.structs.replace(found.launch, transformer_engine=True)
        fix = {"vpp": 1, "ar_method": "block"} if found.model.experts else {}
        return msgspec.structs.replace(found, launch=launch, space=SpaceLimits(fix=fix))
    return found


def asked() -> list[dict[str, Any]]:
    """Random configurations with the flags of their export."""
    rows = []
    for name, count in JOBS.items():
        space = JobSpace.of_job(job(name))
        for seed in range(count):
            configuration = space.sample(np.random.default_rng(seed))
            rows.append(
                {
                    "job": name,
                    "knobs": configuration.knobs,
                    "world": arguments.world_size(configuration),
                    "flags": arguments.flags(job(name), configuration),
                    "variables": arguments.variables(job(name), configuration),
                }
            )
    return rows


def flags_now(row: dict[str, Any]) -> arguments.Flags:
    """The flags of the catalog's release, independent of the installed one."""
    own = job(row["job"])
    of_catalog = msgspec.structs.replace(own, launch=msgspec.structs.replace(own.launch, command_prefix=["env"]))
    return arguments.flags(of_catalog, Configuration(row["knobs"]))


def tokenizers(row: dict[str, Any]) -> list[int]:
    """Tokenizer sizes for the job's model: its vocabulary, some tokens less (Qwen's: 271), and half."""
    vocab = job(row["job"]).model.vocab
    return [vocab, vocab - 7, max(vocab - 271, 1), vocab // 2 + 1]


def plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, functools.partial):
        return plain(value.func)
    return getattr(value, "__name__", None) or str(value)


def fields(*configs: Any) -> dict[str, Any]:
    """The configurations' values by qualified name, as in {"TransformerConfig.hidden_size": 64}."""
    return {
        f"{type(config).__name__.removeprefix('Adam').removeprefix('MLA')}.{field.name}": plain(
            getattr(config, field.name)
        )
        for config in configs
        for field in dataclasses.fields(config)
    }


def of_the_worker(row: dict[str, Any]) -> dict[str, Any]:
    sys.path.insert(0, str(WORKER))
    import configs  # type: ignore  # the worker's module, which runs without our packages

    pretend_transformer_engine()
    given = configs.read({"arguments": row["flags"]})["given"]
    on_cpu = all(node.device == "cpu" for node in job(row["job"]).cluster.nodes)
    return fields(configs.transformer(given, on_cpu), configs.ddp(given), configs.optimizer(given, 1e-5))


def differences(recorded: dict[str, Any], worker: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """field → (Megatron-LM's value, the worker's value), where they differ."""
    return {
        name: (value, worker.get(name, "—"))
        for name, value in recorded.items()
        if value != worker.get(name, "—") and name.split(".")[1] not in UNSEEN
    }


def answers() -> list[dict[str, Any]]:
    """The recorded rows, each with `fields`."""
    document = json.loads(RECORDED.read_bytes())
    return [{**row, "fields": {**document["common"], **row["fields"]}} for row in document["rows"]]


def their_padding(checkout: str) -> Any:
    """Megatron-LM's _vocab_size_with_padding, extracted because its file imports all tokenizers."""
    text = Path(checkout, "megatron/training/tokenizer/tokenizer.py").read_text()
    (function,) = (part for part in ast.parse(text).body if getattr(part, "name", "") == "_vocab_size_with_padding")
    made: dict[str, Any] = {"math": math}
    exec(ast.unparse(function), made)
    return made["_vocab_size_with_padding"]


# ---- with a checkout ----------------------------------------------------------------------------------------------


def ask(checkout: str) -> None:
    """Runs in a separate process per world size: reads rows from stdin, writes them with Megatron-LM's `fields` or
    `refused`."""
    rows = json.load(sys.stdin)
    sys.path.insert(0, checkout)
    import torch

    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
    torch.cuda.get_device_properties = lambda *a, **k: types.SimpleNamespace(major=9, minor=0)  # type: ignore
    package: Any = types.ModuleType("megatron.training")  # without its __init__, which imports data and tokenizers
    package.__path__ = [f"{checkout}/megatron/training"]
    package.get_args = package.get_timers = package.get_adlr_autoresume = package.get_tokenizer = None
    sys.modules["megatron.training"] = package
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import AdamOptimizerConfig
    from megatron.training.arguments import (  # type: ignore
        core_transformer_config_from_args,
        parse_args,
        validate_args,
    )

    pretend_transformer_engine()
    padded = their_padding(checkout)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Megatron-LM prints its arguments to stdout
    for row in rows:
        os.environ.update(WORLD_SIZE=str(row["world"]), RANK="0", LOCAL_RANK="0", **row["variables"])
        sys.argv = ["pretrain_gpt.py", *words(row["flags"]), *OF_THE_PERSON]
        try:
            args = parse_args()
            validate_args(args, {})
            # copied from get_model and get_megatron_optimizer_config in training.py
            ddp = {
                f.name: getattr(args, f.name)
                for f in dataclasses.fields(DistributedDataParallelConfig)
                if hasattr(args, f.name)
            }
            ddp["grad_reduce_in_fp32"] = args.accumulate_allreduce_grads_in_fp32
            ddp["check_for_nan_in_grad"] = args.check_for_nan_in_loss_and_grad
            ddp["check_for_large_grads"] = args.check_for_large_grads
            ddp["bucket_size"] = args.ddp_bucket_size
            ddp["pad_buckets_for_high_nccl_busbw"] = args.ddp_pad_buckets_for_high_nccl_busbw
            ddp["reduce_scatter_with_fp32_accumulation"] = args.ddp_reduce_scatter_with_fp32_accumulation
            ddp["average_in_collective"] = args.ddp_average_in_collective
            optimizer = {
                f.name: getattr(args, f.name) for f in dataclasses.fields(AdamOptimizerConfig) if hasattr(args, f.name)
            }
            row["vocab"] = [padded(size, args, False) for size in tokenizers(row)]
            row["fields"] = fields(
                core_transformer_config_from_args(args),
                DistributedDataParallelConfig(**ddp),
                AdamOptimizerConfig(**optimizer),
            )
        except (Exception, SystemExit) as error:
            row["refused"] = f"{type(error).__name__}: {error}"
    json.dump(rows, answers)


def record(checkout: str) -> None:
    rows = asked()
    command = [sys.executable, __file__, "--ask", checkout]
    done = subprocess.run(command, input=json.dumps(rows), stdout=subprocess.PIPE, text=True, check=True)
    rows = json.loads(done.stdout)
    for row in rows:
        if "refused" in row:
            print(row["job"], row["knobs"], row["refused"])
    rows = [row for row in rows if "fields" in row]
    common = {
        k: v for k, v in rows[0]["fields"].items() if sum(row["fields"].get(k) == v for row in rows) * 2 > len(rows)
    }
    for row in rows:
        row["fields"] = {k: v for k, v in row["fields"].items() if k not in common or common[k] != v}
    made = f"python tests/tools/megatron_parser.py CHECKOUT-OF-{VERSION}"
    document = {"megatron_lm": VERSION, "command": made, "common": common, "rows": rows}
    RECORDED.write_text(json.dumps(document, indent=None, separators=(",", ":")).replace('{"job"', '\n{"job"') + "\n")


def table() -> None:
    seen: Counter[str] = Counter()
    examples: dict[str, tuple[Any, Any]] = {}
    rows = answers()
    for row in rows:
        for name, pair in differences(row["fields"], of_the_worker(row)).items():
            seen[name] += 1
            examples[name] = pair
    total = len(rows[0]["fields"])
    print(f"{len(rows)} configurations, {total} fields each; fields that differ from Megatron-LM {VERSION}:\n")
    print("| field | configurations | Megatron-LM | our worker | why |\n|---|---|---|---|---|")
    for name, count in seen.most_common():
        theirs, ours = examples[name]
        print(f"| {name} | {count} | {theirs} | {ours} | {INTENDED.get(name.split('.')[1], 'NOT INTENDED')} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        ask(sys.argv[2])
    elif len(sys.argv) > 1:
        record(sys.argv[1])
    else:
        table()
