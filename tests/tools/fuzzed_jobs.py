"""Job files with odd values in every table, and launch commands with odd quoting: two kinds of inputs for `fuzz.py`."""

import random
import tomllib
from pathlib import Path
from typing import Any

from autoscout.job.toml_text import toml

_ROOT = Path(__file__).parents[2]
_TRAINING = r"""
name = "own"
target = "command"
task = "finetune"
[model]
preset = "llama-3.2-3b"
layers = 4
[traffic]
seq_len = 128
global_batch = 16
lengths = [1, 5, 9]
[cluster]
nodes = [{ device = "a100", count = 8, memory_gib = 80.0, price_per_hour = 2.5 }]
network = { between_nodes_gbps = 200 }
[objective]
minimize = "step_time_s"
constraints = ["peak_rss_gib <= 76"]
also = ["maximize tokens_per_s"]
[budget]
profiles = 5
wall = "2m"
device_time = "1h"
failures = 0.1
[launch]
command = "python train.py --micro-batch 1 --buckets 25 --lr {1 / mbs}"
python = "python3"
command_prefix = ["nice", "-n", "1"]
path = "."
environment = { OMP_NUM_THREADS = "1", X = "{mbs}" }
metrics = { step_time_ms = 'ms ([\d.]+)', x = { between = 'step (\d+)' }, y_per_s = { counter = 'n: (\d+)' } }
render = [{ from = "in.yaml", to = "out.yaml", plain = true }]
neutral = ["--my-log"]
warmup = 1
iterations = 3
measure_s = 1.5
timeout_s = 20
repeats = 2
loss_tolerance = 0.02
end_early = true
[space]
fix = { mbs = 2 }
limit = { buckets = [1, 4] }
derived = { twice = "2 * mbs" }
knob = [
  { name = "mbs", values = [1, 2, 4], sets = "--micro-batch", default = 1, kind = "sparse" },
  { name = "buckets", values = "divisors(global_batch)", sets = "--buckets", default = 1, kind = "dense" },
  { name = "fused", values = [false, true], sets = "--fused", default = false, when = "mbs > 1", off = false },
  { name = "stage", values = [1, 2, 3], sets = "yaml:zero.stage", layer = "own", meaning = "of ZeRO" },
]
rule = [{ holds = "mbs * buckets <= 32", reason = "memory", id = "R1" }]
[guard]
command = "python eval.py"
pattern = 'acc ([\d.]+)'
at_least = 0.5
knobs = ["fused"]
timeout_s = 60.0
"""
_SERVING = """
name = "served"
target = "vllm"
task = "serve"
[model]
layers = 4
hidden = 256
heads = 4
kv_heads = 2
ffn = 688
vocab = 2048
gated = true
experts = 8
topk = 2
expert_ffn = 64
[traffic]
concurrency = 4
input_len = [1, 11, 878]
output_len = 20
shared_prefix = 5
requests = 9
sessions = { turns = [1, 3], think_s = 1.5, groups = 2, sub_calls = 1 }
[cluster]
nodes = [{ device = "h100", count = 2 }]
[objective]
maximize = "output_tokens_per_s"
constraints = ["ttft_p90_ms <= 150"]
[budget]
profiles = 3
[launch]
current = "vllm serve m --tensor-parallel-size 2 --max-num-seqs 64"
launcher = "serve"
draft = { method = "eagle", model = "d" }
accepted = { eagle = 0.5 }
kv_folder = "k"
[space]
fix = { eager = true }
limit = { tp = [1, 2] }
allow = ["kv_cache_dtype"]
"""
_ODD: list[Any] = [
    *(True, -1, 0, 1, 2**31, 2**63 - 1, 2**64, 10**400, 1e308, -1e-323, float("nan"), float("inf"), -float("inf")),
    *("", " ", "nan", "ok", "\x1b]52;c;x\x07", "../../etc", "\ud800", "é𝕏\u202e", "x" * 5000, "a\nb", "$(id)"),
    *("{", "{{}}"),
    *("[", "(?P<", "(a+)+$", "1 / 0", "2 ** 9", "mbs", "-5m", "1e999h", "9" * 400, "--", "'", '"', "/dev/null", "/"),
    *([], {}, [[]], [[], {}], {"a": {"b": [1]}}, [1, "a", None], ["", ""], [0] * 3, {"": 1}, [{"name": 1}], "\x00"),
]  # fmt: skip
_LINES = (
    "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --bf16",
    "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 --compilation-config '{\"level\": 3}'",
    "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --mem-fraction-static 0.8",
    "deepspeed --num_gpus 4 train.py --deepspeed ds.json --per_device_train_batch_size 2",
    'accelerate launch --config_file a.yaml --num_processes 4 sft.py --learning_rate 1e-4 --output_dir "out dir"',
    "OMP_NUM_THREADS=4 CUDA_VISIBLE_DEVICES=0,1 mpirun -np 2 -x PATH python train.py lr=1e-4 model.layers=2 +a.b=[1,2]",
    "docker run --rm --gpus '\"device=0,1\"' -e HF_TOKEN=$HF_TOKEN -v $PWD:/w img:1 vllm serve m --port 8000",
    "srun --nodes=2 --gpus-per-node=8 bash -c 'torchrun --nnodes $SLURM_NNODES train.py --name \"$(date +%F)\"'",
)
_SCRIPTS = (
    "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\nN=$((2*4))\nARGS=(--bf16 --seq-length 4096)\ncd x\n",
    'set -euo pipefail\nfor i in 1 2; do\nexport A_$i=${B:-3}\ndone\nif [ -z "$X" ]; then X=1; fi\nf() { echo $1; }\n',
    'cat > ds.json <<\'EOF\'\n{"zero_optimization": {"stage": 2}}\nEOF\nOPT="--a \\\n --b \'c d\'"\n',
)
_MANIFEST = """apiVersion: v1
kind: Pod
spec:
  containers:
    - image: vllm/vllm-openai:v0.9.0
      command: ["/bin/sh", "-c"]
      args: ["vllm serve Qwen/Qwen3-8B --tensor-parallel-size $(TP)"]
      env: [{name: TP, value: "2"}]
      resources: {limits: {nvidia.com/gpu: 2}}
"""
_PIECES = (
    *("'", '"', "\\", "`", "$(", "${", "$((", "${x:-", "<<EOF\n", "\n", "&&", "|", ";", "&", ">", "<("),
    *("{", "}", "[[", "("),
    *("--", "-", "--x=", "=", "--=", "-np", "$@", "$1", "~", "*", "!", "#", "\t", "\r", "\x00", "\x1b[2J", "\u2028"),
    *("é", "𝕏", "-1", "nan", "1e999", "9" * 30, "{a,b}", "${!x}", "$'\\x41'", "${x/a/b}", "eval", "exec", "source"),
    *(". ./x", "()", "case"),
    *("--nproc-per-node", "--nnodes 0", "--tensor-parallel-size -2", "--micro-batch-size 1.5", "-f", "\udcff"),
)  # fmt: skip
_ON_JOBS = (["explain"], ["space"], ["space", "--list", "3"], ["predict", "--top", "3"], ["best"], ["similar"],
            ["check"], ["tune", "--dry-run"], ["tune", "--as", "slurm"], ["tune", "--as", "jobset"])  # fmt: skip

Case = list[str]  # the arguments of `autoscout`


def job(folder: Path, chance: random.Random) -> Case:
    """A valid job file, a shipped one or one with every table, with one to three values replaced."""
    shipped = sorted((_ROOT / "fixtures" / "jobs").glob("*.toml"))
    ours = chance.choice((_TRAINING, _SERVING))
    content = tomllib.loads(ours if chance.random() < 0.6 else chance.choice(shipped).read_text())
    (folder / "in.yaml").write_text("zero:\n  stage: 1\n")
    for _ in range(chance.randint(1, 3)):
        content = _odd(content, chance)
    path = folder / "job.toml"
    path.write_bytes(
        _finite_names(toml(content)).encode("utf-8", "surrogatepass" if chance.random() < 0.1 else "replace")
    )
    verb, *options = chance.choice(_ON_JOBS)
    return [
        verb,
        str(path),
        *options,
        *(["mbs=2"] if verb == "explain" and chance.random() < 0.5 else []),
    ]


def _odd(content: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The content with one value replaced, at any depth, or one key renamed or removed."""
    key = chance.choice(list(content)) if content else "x"
    value = content.get(key)
    roll = chance.random()
    if isinstance(value, dict) and roll < 0.85:
        return {**content, key: _odd(value, chance)}
    if isinstance(value, list) and value and roll < 0.7:
        at = chance.randrange(len(value))
        one = value[at]
        one = _odd(one, chance) if isinstance(one, dict) and chance.random() < 0.8 else chance.choice(_ODD)
        return {**content, key: [*value[:at], one, *value[at + 1 :]]}
    if roll > 0.95:
        return {k: v for k, v in content.items() if k != key}
    if roll > 0.9:
        return {**{k: v for k, v in content.items() if k != key}, chance.choice(("", "x y", "é", key + "s")): value}
    return {**content, key: chance.choice(_ODD)}


def _finite_names(text: str) -> str:
    """Converts infinite and NaN numbers to TOML's spelling; `null` stays, as an invalid value in TOML."""
    return text.replace("-Infinity", "-inf").replace("Infinity", "inf").replace("NaN", "nan")


def line(folder: Path, chance: random.Random) -> Case:
    """A launch command with odd fragments: as arguments, as one argument, in a script, a manifest, or a job file."""
    text = chance.choice(_LINES)
    kind = chance.choice(("words", "word", "script", "manifest", "current", "command"))
    if kind == "script":
        text = _broken(
            chance.choice(_SCRIPTS) + text + (" $ARGS ${OPT}" if chance.random() < 0.5 else "") + "\n", chance
        )
    elif kind == "manifest":
        text = _broken(_MANIFEST, chance)
    elif kind != "words":
        text = _broken(text, chance)
    more = chance.choice(([], [], ["--target", "megatron"]))
    match kind:
        case "words":
            words = text.split(" ")
            for _ in range(chance.randint(1, 3)):
                words.insert(chance.randrange(len(words) + 1), _passed(chance.choice(_PIECES)))
            return ["init", *more, "--", *(_passed(word) for word in words)]
        case "word":
            return ["init", *more, "--", _passed(text)]
        case "script" | "manifest":
            path = folder / ("run.sh" if kind == "script" else "pod.yaml")
            path.write_bytes(text.encode("utf-8", "surrogateescape"))
            return ["init", str(path), *more]
        case _:
            content = tomllib.loads(_SERVING if kind == "current" else _TRAINING)
            content["launch"][kind] = text
            path = folder / "job.toml"
            path.write_text(toml(content), errors="replace")
            return [chance.choice(("check", "explain", "space")), str(path)]


def _passed(word: str) -> str:
    """The text without characters that a process argument cannot have."""
    return word.replace("\x00", "")


def _broken(text: str, chance: random.Random) -> str:
    """The text with odd fragments inserted, or a section deleted or repeated."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.randint(1, 20))
        text = {
            0: text[:at] + text[end:],
            1: text[:end] + text[at:],
            2: text[:at],
        }.get(chance.randrange(12), text[:at] + chance.choice(_PIECES) + text[at:])
    return text
