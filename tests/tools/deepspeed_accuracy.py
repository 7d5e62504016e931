"""Compares predictions of DeepSpeed jobs with measurements by DeepSpeed's autotuner: GPT-2 in four sizes on a DGX-2 (16
V100), from the READMEs of DeepSpeedExamples, training/autotuning/hf, at commit 45b4b715; and with the two grids of
fixtures/deepspeed on two CPU ranks, with their [model] added: medians of ten runs each.

    PYTHONPATH=. python tests/tools/deepspeed_accuracy.py

The jobs are drafted by `init` from its test_tune.sh: fp16, 1,024 tokens; Transformers 4.12, whose attention is not
fused. The autotuner's samples per second exclude the time between DeepSpeed's forward, backward and step; those of the
manually tuned runs include it. No constant was fitted to these runs, except that of ZeRO-3's hooks, to the grid
`second`."""

import csv
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from scipy.stats import spearmanr

from autoscout.simulate.ensemble import Simulators
from autoscout.targets.jobs import JobSpace, load_job, simulators_of
from kb.records import Configuration, Job, Model, Traffic

SIZES = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20), "gpt2-xl": (48, 1600, 25)}
# (model, ZeRO stage, micro batch, samples/s in the autotuner's experiments): the best of each stage, with about the
# largest micro batch that ran.
MEASURED = [
    *(("gpt2", 0, 11, 441.693), ("gpt2", 1, 15, 452.004)),
    *(("gpt2-medium", 0, 5, 167.688), ("gpt2-medium", 1, 6, 175.46), ("gpt2-medium", 2, 6, 161.619)),
    *(("gpt2-large", 0, 2, 59.0229), ("gpt2-large", 1, 3, 87.3017), ("gpt2-large", 2, 3, 77.8338)),
    *(("gpt2-xl", 1, 1, 40.1749), ("gpt2-xl", 2, 1, 33.0472), ("gpt2-xl", 3, 1, 12.8604)),
]
# (model, stage, micro batch, samples/s from end to end)
TRAINED = [
    *(("gpt2", 1, 8, 397.827), ("gpt2-medium", 1, 4, 142.211), ("gpt2-medium", 1, 6, 163.3)),
    *(("gpt2-large", 1, 2, 56.797), ("gpt2-large", 1, 3, 69.061), ("gpt2-xl", 1, 1, 27.497)),
]
WITHIN_90 = 1.645
EAGER = " --attn_implementation eager"  # the behaviour of Transformers 4.12; 4.36 and later differ
MICRO = [1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 14, 15, 16, 20, 24, 32]


def job_of(model: str, folder: Path, kernels: str) -> Job:
    layers, hidden, heads = SIZES[model]
    shape = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": 50257, "model_type": "gpt2"}
    (folder / "config.json").write_text(json.dumps(shape))
    config = {
        "train_micro_batch_size_per_gpu": MICRO,
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": [0, 1, 2, 3]},
    }
    (folder / "ds.json").write_text(json.dumps(config))
    (folder / "job.toml").write_text(
        f'name = "{model}"\ntarget = "deepspeed"\n[model]\nfrom = "config.json"\n[traffic]\nseq_len = 1024\n'
        '[cluster]\nnodes = [{ device = "v100", count = 16 }]\nnetwork = { between_nodes_gbps = 9600 }\n'
        '[objective]\nmaximize = "samples_per_s"\n[launch]\n'
        'command = "torchrun run_clm.py --model_name_or_path gpt2 --deepspeed ds.json --fp16' + f'{kernels}"\n'
        'render = [{ from = "ds.json", to = "{folder}/ds.json" }]\n'
    )
    return load_job(folder / "job.toml")


class Predicted:
    def __init__(self, model: str, folder: Path, kernels: str) -> None:
        self.job = job_of(model, folder, kernels)
        self.space = JobSpace.of_job(self.job)
        self.simulators = Simulators(self.job, self.space, [], bases=lambda: simulators_of(self.job))

    def columns(self, stage: int, mbs: int) -> dict[str, np.ndarray]:
        return self.simulators.columns([self.space.canonical({"stage": stage, "mbs": mbs})])

    def speed(self, stage: int, mbs: int) -> tuple[float, float]:
        said = self.simulators.bases()[0].predict(self.columns(stage, mbs))
        return float(said.value[0]), float(said.error[0])

    def chance(self, stage: int, mbs: int) -> float:
        memory = self.simulators.memory
        assert memory is not None
        return float(memory.oom_probability(self.columns(stage, mbs))[0])

    def largest(self, stage: int) -> int:
        return max((mbs for mbs in MICRO if self.chance(stage, mbs) <= 0.5), default=0)


def recorded(grid: str, layers: int, hidden: int, length: int, batch: int) -> None:
    """Prints the median error and the rank correlation over the configurations of one of our own grids."""
    folder = Path(__file__).parents[2] / "fixtures" / "deepspeed"
    job = load_job(folder / f"{grid}.toml")
    model = Model(layers=layers, hidden=hidden, heads=hidden // 16, vocab=2048, ffn=4 * hidden, dtype="fp32")
    job = msgspec.structs.replace(job, model=model, traffic=Traffic(seq_len=length, global_batch=batch))
    space = JobSpace.of_job(job)
    times: dict[Configuration, list[float]] = defaultdict(list)
    for row in csv.DictReader((folder / f"{grid}.csv").open()):
        said = {knob.name: type(knob.values[0])(row[knob.name]) for knob in space.knobs if row[knob.name]}
        if row["status"] == "ok":
            times[space.canonical(said)].append(float(row["step_time_s"]))
    speeds = [batch / statistics.median(seconds) for seconds in times.values()]
    simulators = Simulators(job, space, [], bases=lambda: simulators_of(job))
    said = simulators.bases()[0].predict(simulators.columns(list(times)))
    logs = np.log(said.value / speeds)
    rank = float(spearmanr(speeds, said.value)[0])
    inside = np.mean(np.abs(logs) <= WITHIN_90 * said.error)
    print(
        f"{grid}: {len(speeds)} configurations, MAPE {np.mean(np.abs(np.expm1(logs))):.0%}, bias "
        f"{np.expm1(np.mean(logs)):+.0%}, {inside:.0%} inside, rank correlation {rank:.2f}"
    )
    best = list(times)[int(np.argmax(said.value))]
    print(
        f"  best predicted: {space.name(best)}, {max(speeds) / speeds[list(times).index(best)] - 1:.0%} behind the best"
    )


def main() -> None:
    recorded("grid", 2, 128, 128, 16)
    recorded("second", 4, 64, 64, 32)
    for kernels in ("", EAGER):
        with tempfile.TemporaryDirectory() as folder:
            of = {model: Predicted(model, Path(folder), kernels) for model in SIZES}
        print(f"\nthe line with{kernels}" if kernels else "\nthe line as it is")
        for title, rows in (("experiments", MEASURED), ("end to end", TRAINED)):
            print(f"\n| {title} | stage | micro batch | samples/s | predicted | off |\n|---|---|---|---|---|---|")
            print("\n".join(compared(of, rows)))
        print("\n| model | stage | ran with | largest predicted to fit | chance to run out of it |")
        print("|---|---|---|---|---|")
        for model, stage, mbs, _ in MEASURED:
            print(f"| {model} | {stage} | {mbs} | {of[model].largest(stage)} | {of[model].chance(stage, mbs):.0%} |")
        print(f"gpt2-xl at stage 0, micro batch 1 (ran out of memory): {of['gpt2-xl'].chance(0, 1):.0%}")


def compared(of: dict[str, Predicted], rows: list[tuple[str, int, int, float]]) -> Iterator[str]:
    off, inside = [], []
    for model, stage, mbs, measured in rows:
        value, error = of[model].speed(stage, mbs)
        off.append(np.log(value / measured))
        inside.append(abs(off[-1]) <= WITHIN_90 * error)
        yield f"| {model} | {stage} | {mbs} | {measured:.1f} | {value:.1f} | {value / measured - 1:+.0%} |"
    mape, bias = np.mean(np.abs(np.expm1(off))), np.expm1(np.mean(off))
    yield f"MAPE {mape:.1%}, bias {bias:+.1%}, {np.mean(inside):.0%} in the 90 % interval"


if __name__ == "__main__":
    main()
