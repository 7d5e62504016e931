"""Compares the training model with NVIDIA's DGX Cloud benchmarking recipes: step times of NeMo 24.09 to 25.04 on 8 to
2,304 H100 and 128 to 512 GB200, in bf16 and FP8. Pages are not in this repository (MIT and Apache-2.0).

    git clone https://github.com/NVIDIA/dgxc-benchmarking pages/dgxc
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_training_dgxc pages/dgxc [--rows]

A row is a cell of a release's pages; its layout is in the table's title, or in a table above. Other settings are from
the recipes (`*.yaml`, `launch.sh`, and NeMo's): gradients are reduced in 16 bits, tensor parallelism has sequence
parallelism and overlapped communication, and the optimizer is sharded over replicas, with overlap. A cell that a later
release repeats counts once. Llama 4, DeepSeek, Nemotron-H and MaxText are excluded, with a reason."""

import argparse
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.training_tables import columns_of
from tests.tools.published_serving import show

Row = dict[str, Any]
Cells = list[str]

RELEASES = ("v24.11.1", "v25.01.1", "v25.02.02", "v25.04.02", "v25.05.05")
_SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab")
SHAPES: dict[str, Row] = {
    "llama 8b": dict(zip(_SHAPE, (32, 4096, 32, 8, 14336, 1, 128256), strict=True)),
    "llama 70b": dict(zip(_SHAPE, (80, 8192, 64, 8, 28672, 1, 128256), strict=True)),
    "llama 405b": dict(zip(_SHAPE, (126, 16384, 128, 8, 53248, 1, 128256), strict=True)),
    "nemotron 15b": dict(zip(_SHAPE, (32, 6144, 48, 8, 24576, 0, 256000), strict=True)),
    # chunks from NeMo's model_configs_h100.csv, as the tables omit them
    "nemotron 340b": dict(zip(_SHAPE, (96, 18432, 96, 8, 73728, 0, 256000), strict=True)) | {"vpp": 12},
    "gpt 175b": dict(zip(_SHAPE, (96, 12288, 96, 96, 49152, 0, 51200), strict=True)) | {"bias": 1, "tied": 1},
    # capacity factor 1, experts run sequentially, no overlap of tensor parallelism
    "grok 314b": dict(zip(_SHAPE, (64, 6144, 48, 8, 32768, 1, 131072), strict=True))
    | {"experts": 8, "topk": 2, "expert_ffn": 32768, "tp_comm_overlap": 0},
}
_PAGES = (
    ("llama3.1/", "llama", 8192), ("nemotron/", "nemotron", 4096), ("nemo_megatron/", "gpt", 2048),
    ("grok1/", "grok", 8192), ("llama3/finetuning/", "llama", 4096), ("ft_llama3/", "llama", 4096),
)  # fmt: skip
# Fine-tuning uses SQuAD's examples of about 200 tokens, packed to the sequence length (NeMo's finetune_recipe).
PACKED = {"packing": 1, "packed_context": 200}
_NOT_OF_TABLES = ("packing", "packed_context", "lora_rank", "adapter_width")  # columns that are not in tables
_LEFT_OUT = {
    "llama4/": "experts in every other layer", "deepseek_v3/": "no word of what is recomputed",
    "nemotronh/": "layers with a state", "maxtext/": "no word of what is recomputed",
}  # fmt: skip
_LAYOUT = {
    "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "vp": "vpp", "mbs": "mbs", "gbs": "global_batch",
    "layers": "layers", "seqlen": "seq_len", "seq": "seq_len", "gpus": "gpus", "etp": "etp",
}  # fmt: skip
_DEVICES = re.compile(r"(\d+)x? (H100|GB200) GPUs")
_TITLED = re.compile(r"(\w+) ?= ?(\d+)")


def rows_of(clone: Path) -> tuple[list[Row], Counter[str]]:
    """(rows of all releases, number of excluded pages or cells by reason)."""
    rows, reasons = dict[tuple[Any, ...], Row](), Counter[str]()
    for release in RELEASES:
        for path in _git(clone, "ls-tree", "-r", "--name-only", release).split():
            reasons.update(why for folder, why in _LEFT_OUT.items() if path.startswith(folder) and "README" in path)
            for folder, family, seq_len in _PAGES:
                if path.startswith(folder) and "README" in path:
                    for row in _of_page(_git(clone, "show", f"{release}:{path}"), family, seq_len):
                        if why := _unfit(row):
                            reasons[why] += 1
                            continue
                        same = tuple(row[k] for k in ("model", "method", "precision", "gpus", "iteration_time_s"))
                        rows.setdefault((*same, row["global_batch"]), row | {"page": f"{release} {folder}"})
    return list(rows.values()), reasons


def _unfit(row: Row) -> str:
    if "tp" not in row:
        return "no layout"
    if not row["dp"]:
        return "a layout of more devices than it has"
    return "a batch that its replicas do not divide" if row["global_batch"] % (row["dp"] * row["mbs"]) else ""


def _git(clone: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(clone), *words], capture_output=True, text=True, check=True).stdout


def _of_page(text: str, family: str, seq_len: int) -> Iterator[Row]:
    layouts = list[tuple[str, Row]]()
    for above, table in _tables(text):
        names = [cell.lower() for cell in table[0]]
        if "tp" in names and "gpus" in names:
            layouts += [(above, _layout(dict(zip(names, cells, strict=False)))) for cells in table[2:]]
            continue
        time = next((cells for cells in table if cells[0].startswith("Training step time")), None)
        if time is None:
            continue
        beside = {cells[0].lower(): cells[1:] for cells in table[2:] if cells[0].lower() in _LAYOUT}
        for i, (head, seconds) in enumerate(zip(table[0][1:], time[1:], strict=False)):
            if (found := _DEVICES.search(head)) and (seconds := _number(seconds)):
                told = _titled(table[0][0], head) | _layout({k: v[i] for k, v in beside.items()})
                row = _named(table[0][0], family) | {"gpus": int(found[1]), "gpu": found[2].lower()}
                yield _completed(row | {"iteration_time_s": seconds}, told, layouts, seq_len)


def _tables(text: str) -> Iterator[tuple[str, list[Cells]]]:
    """The tables, each with the last line above it that names a device or a method of fine-tuning."""
    above, table = "", list[Cells]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|") or (table and "|" in line):
            table.append([cell.strip() for cell in line.strip().strip("|").split("|")])
            continue
        if len(table) > 2:
            yield above, table
        table = []
        if line.startswith(("#", "**")) and re.search(r"GB200|H100|SFT|LoRA", line, re.IGNORECASE):
            above = line.lower()


def _named(title: str, family: str) -> Row:
    """The columns from a title like "Llama3 70b Finetuning LORA FP8 (…)". A model with fewer layers has its own name
    and shape."""
    size = found[1] if (found := re.search(r"\b(\d+)b\b", title)) else "175"
    method = next((m for m in ("lora", "sft") if m in title.lower()), "pre-training")
    return {"model": f"{family} {size}b", "method": method, "precision": "fp8" if "FP8" in title else "bf16"}


def _titled(title: str, head: str) -> Row:
    return _layout({name.lower(): value for text in (title, head) for name, value in _TITLED.findall(text)})


def _layout(told: dict[str, str]) -> Row:
    found: Row = {ours: int(n) for name, ours in _LAYOUT.items() if (n := _number(told.get(name, "")))}
    return found | ({k: v for k, v in told.items() if k in ("size", "precision")} if "tp" in found else {})


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"[\d.]+", text) else 0.0


def _completed(row: Row, told: Row, layouts: list[tuple[str, Row]], seq_len: int) -> Row:
    if "tp" not in told:
        near = [one for above, one in layouts if _fits(row, told, above, one)]
        if not near:
            return row
        told = near[0] | told
    told = {k: v for k, v in told.items() if k not in ("size", "precision")}
    fixed: Row = {
        "grad_bytes": 2, "distopt": 1, "overlap_grad": 1, "overlap_param": 1, "overlap_p2p": 1, "recompute": "none",
        "bias": 0, "tied": 0, "seq_len": seq_len, "mbs": 1, "pp": 1, "cp": 1,
        "per_node": 8 if row["gpu"] == "h100" else 4,
    }  # fmt: skip
    split = int(told["tp"] > 1)
    found = fixed | {"sp": split, "tp_comm_overlap": split} | SHAPES[row["model"]] | told | row
    # adapters only at the product for queries, keys and values, as in NeMo's finetune_recipe
    if found["method"] == "lora":
        width = found["hidden"] + (found["heads"] + 2 * found["kv_heads"]) * 128
        found |= {"lora": 1, "lora_rank": 16, "adapter_width": width}
    if found["method"] != "pre-training":
        found |= PACKED
    if found["pp"] == 1:
        found["vpp"] = 1
    if found.get("experts"):
        found["etp"] = told.get("etp", told["tp"])
    return found | {"framework": "NeMo", "dp": found["gpus"] // (found["tp"] * found["pp"] * found["cp"])}


def _fits(row: Row, told: Row, above: str, layout: Row) -> bool:
    said = layout.get("precision", row["precision"]).lower()
    batch = told.get("global_batch", layout["global_batch"]) == layout["global_batch"]
    method = not re.search(r"sft|lora", above) or row["method"] in above
    device = not re.search(r"gb200|h100", above) or row["gpu"] in re.findall(r"gb200|h100", above)
    size = layout.get("size", row["model"]).lower().split("-")[0].strip()
    same = row["model"].endswith(size) and layout["gpus"] == row["gpus"]
    return same and batch and method and device and row["precision"] in said


def columns(rows: list[Row]) -> dict[str, np.ndarray]:
    own = {name: np.array([row.get(name, np.nan) for row in rows], dtype=float) for name in _NOT_OF_TABLES}
    return columns_of(rows) | own


def main() -> None:
    parser = argparse.ArgumentParser(description="How far the training model is from DGX Cloud's recipes.")
    parser.add_argument("clone", type=Path, help="of the recipes' repository, with its tags")
    parser.add_argument("--rows", action="store_true", help="prints each row, too")
    options = parser.parse_args()
    rows, reasons = rows_of(options.clone)
    told = Training().predict(columns(rows))
    groups: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for i, row in enumerate(rows):
        found = float(told.value[i]), row["iteration_time_s"], float(told.error[i])
        nodes = "one node" if row["gpus"] <= 8 else "more nodes"
        for name in ("all", f"{row['model']} {row['method']} {row['precision']} {row['gpu']}", f"all on {nodes}"):
            groups.setdefault("step_time_s", {}).setdefault(name, []).append(found)
        if options.rows:
            parts = ", ".join(f"{n} {float(np.broadcast_to(p, len(rows))[i]):.3f}" for n, p in told.parts.items())
            layout = " ".join(
                f"{n}{row[n]}" for n in ("tp", "pp", "cp", "ep", "vpp", "mbs", "global_batch", "layers") if row.get(n)
            )
            print(
                f"{row['page']} {row['model']} {row['method']} {row['precision']} {row['gpus']} {row['gpu']} {layout}"
            )
            print(f"    {found[1]:.3f} s measured, {found[0]:.3f} predicted {found[0] / found[1] - 1:+.1%}: {parts}")
    show(groups, reasons)


if __name__ == "__main__":
    main()
