"""How `autoscout init` interprets public launch commands, by framework: entirely ("whole"), with a question ("asked"),
wrongly.

    PYTHONPATH=. python tests/tools/lines_read.py FOLDER [--half mine|kept|both] [--only NAME] [--verbs]
                                                  [--show wrong|asked|whole] [--sample N] [--take N]

A command ("line") that another target can tune is also interpreted with `init --target`, in a separate row.

FOLDER holds a checkout of each framework under its repository's name (Megatron-LM, verl, …); nothing of it is copied or
run, except by bash in an empty root folder (bash_reads.py). A line is a script, a program's YAML file, or a code block
of a page that launches something. Half of each framework's lines, chosen by the hash of their names, are held out from
whoever fixes errors (`--half kept`).

A line is wrong if an argument that bash passes is lost or added without a note, if ranks, batch, model or degrees
differ from a second reading by simple patterns, if the launch of today's configuration changes or drops a flag of the
line without a note, or if the next command rejects the job that `init` writes. A job that needs a config.json gets an
arbitrary one. A line is "asked" if `init` ends with a question, or a note names a value that it cannot know."""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import re
import shlex
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from bash_reads import commands

from autoscout.line.kinds import arguments
from autoscout.line.launch_line import Line
from autoscout.machine.preflight import preflight
from autoscout.machine.starting import job_file
from autoscout.targets.current_launch import apart, line_of
from autoscout.targets.jobs import JobSpace, declared, load_job
from autoscout.targets.launch import words as launched_words
from autoscout.targets.target import target_of
from autoscout.targets.vllm.line_flags import flags_in, spread
from kb.records import AutoscoutError, Job

_STARTS = re.compile(
    r"(?<![\w/-])(torchrun|torch\.distributed\.(run|launch)|deepspeed|accelerate launch|(swift|megatron) (pt|sft|rlhf)|"
    r"vllm serve|openai\.api_server|sglang\.launch_server|sglang serve|verl\.trainer|openrlhf\.cli|pretrain_gpt|"
    r"llamafactory-cli train|axolotl train|trtllm-serve|trl (sft|dpo|grpo|kto|reward)|colossalai run|composer|"
    r"deepy\.py|uv run \S*run_\w+\.py|(bash|sh) run_mcore_\w+\.sh|primus-cli|tune run|xtuner train|"
    r"skyrl(_train)?\.(train\.)?(entrypoints|main)\S*|uv run (rl|sft|trainer))(?![\w/])"
)
_NO_LAUNCH = re.compile(r"\b(pip|git|wget|curl|apt-get|echo|printf|export|pkill|mkdir|cat|return|local|which|usage:)$")
_BLOCK = re.compile(r"^([ \t>]*)```(?:bash|shell|sh|console)[^\n]*\n(.*?)^[ \t>]*```", re.DOTALL | re.MULTILINE)
# Framework → (patterns of scripts, of pages with code blocks, YAML files → the command that uses them).
_WHERE: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "Megatron-LM": (["examples/**/*.sh"], ["examples/**/*.md"], {}),
    "Megatron-Bridge": (["examples/**/*.sh", "examples/**/*.sbatch"], ["docs/**/*.md"], {}),
    "NeMo": (["tests/functional_tests/*.sh", "scripts/**/*.sh"], [], {}),
    "DeepSpeedExamples": (["**/*.sh"], ["**/*.md"], {}),
    "LLaMA-Factory": (
        ["examples/**/*.sh"],
        ["README.md", "examples/README.md"],
        {"examples/train_*/**/*.yaml": "llamafactory-cli train", "examples/extras/**/*.yaml": "llamafactory-cli train"},
    ),
    "axolotl": (["examples/**/*.sh"], ["docs/**/*.md", "docs/**/*.qmd"], {"examples/**/*.y*ml": "axolotl train"}),
    "ms-swift": (["examples/**/*.sh"], ["docs/source_en/**/*.md"], {}),
    "trl": ([], ["docs/source/*.md", "examples/scripts/*.py", "examples/**/*.md"], {}),
    "verl": (["examples/**/*.sh"], ["docs/**/*.md"], {}),
    "OpenRLHF": (["examples/scripts/*.sh"], ["README.md"], {}),
    "slime": (["scripts/*.sh", "examples/**/*.sh", "scripts/low_precision/*.sh"], ["docs/en/**/*.md"], {}),
    "torchtitan": (["*.sh", "*.slurm"], ["README.md", "docs/*.md"], {}),
    "recipes": ([], ["*/*.md"], {}),
    "sgl-cookbook": ([], ["docs/**/*.md"], {}),
    "llm-d": ([], ["**/*.md"], {"guides/**/*.yaml": "", "recipes/**/*.yaml": ""}),
    "llm-d-modelservice": ([], ["**/*.md"], {"examples/**/*.yaml": ""}),
    "llm-d-infra": ([], ["**/*.md"], {"quickstart/**/*.yaml": ""}),
    "llm-d-benchmark": ([], [], {"config/scenarios/**/*.yaml": ""}),
    "InferenceX": (["benchmarks/single_node/**/*.sh"], [], {}),
    "Pai-Megatron-Patch": (["examples/**/*.sh"], ["examples/**/*.md"], {}),
    "Megatron-DeepSpeed": (["examples/**/*.sh", "examples_deepspeed/**/*.sh"], [], {}),
    "open-instruct": (["scripts/train/**/*.sh", "scripts/*.sh"], ["docs/**/*.md"], {}),
    "NeMo-RL": ([], ["README.md", "docs/**/*.md"], {}),
    "Primus": (["examples/**/*.sh"], ["README.md", "docs/**/*.md", "examples/**/*.md"], {}),
    "ROLL": (["examples/**/*.sh"], ["docs_roll/docs/**/*.md"], {}),
    "OLMo-core": (["src/scripts/train/**/*.sh"], ["README.md", "docs/**/*.md"], {}),
    "open-r1": (["slurm/*.slurm"], ["README.md"], {}),
    "ColossalAI": (["applications/**/*.sh", "examples/**/*.sh"], ["examples/**/*.md"], {}),
    "vllm-ascend": (["examples/**/*.sh"], ["docs/source/**/*.md"], {}),
    "gpt-neox": ([], ["README.md", "**/*.md"], {}),
    "llm-foundry": ([], ["README.md", "scripts/**/*.md"], {}),
    "kubernetes-engine-samples": ([], [], {"ai-ml/**/*.yaml": ""}),
    "kserve": ([], [], {"docs/samples/**/*.yaml": ""}),
    "torchtune": (["recipes/*.sh", "recipes/**/*.slurm"], ["README.md"], {"recipes/configs/**/*.yaml": "# tune run"}),
    "awsome-distributed-training": (
        ["3.test_cases/**/*.sh", "3.test_cases/**/*.sbatch", "3.test_cases/**/*.slurm"],
        ["3.test_cases/**/*.md"],
        {"3.test_cases/**/*.yaml": ""},
    ),
    "FastChat": (["scripts/*.sh"], ["README.md", "docs/*.md"], {}),
    "LLaVA": (["scripts/**/*.sh"], ["README.md", "docs/*.md"], {}),
    "InternVL": (["**/*.sh"], ["**/*.md"], {}),
    "EasyR1": (["examples/**/*.sh"], ["README.md"], {}),
    "aibrix": ([], ["docs/**/*.md"], {"samples/**/*.yaml": "", "brixbench/**/*.yaml": ""}),
    "Qwen-VL-Series-Finetune": (["scripts/*.sh"], ["README.md"], {}),
    "SkyRL": (["examples/**/*.sh", "skyrl-agent/**/*.sh"], ["**/*.md", "docs/**/*.mdx"], {}),
    "FastVideo": (["examples/**/*.sh", "examples/**/*.slurm", "scripts/**/*.sh"], ["docs/**/*.md"], {}),
    "gpu-recipes": (
        ["training/**/*.sh", "src/launchers/*.sh"],
        ["training/**/*.md", "inference/**/*.md"],
        {"**/*.yaml": ""},
    ),
    "production-stack": (
        [],
        ["**/*.md"],
        {"examples/**/*.yaml": "", "tutorials/**/*.yaml": "", "operator/**/*.yaml": ""},
    ),
    "prime-rl": (
        ["scripts/*.sh", "examples/**/*.sh"],
        ["README.md", "docs/**/*.md", "examples/**/*.md"],
        {"k8s/**/*.yaml": ""},
    ),
    "s1": (["train/*.sh", "eval/**/*.sh"], ["README.md", "eval/rebase/**/*.md"], {}),
    "alignment-handbook": (["recipes/*.slurm"], ["**/*.md"], {}),
    "stanford_alpaca": ([], ["README.md"], {}),
    "ai-on-eks": ([], ["**/*.md"], {"**/*.yaml": ""}),
    "lws": ([], ["**/*.md"], {"docs/**/*.yaml": ""}),
    "rllm": (["examples/**/*.sh"], ["docs/**/*.md", "docs/**/*.mdx"], {}),
    "xtuner": (["**/*.sh"], ["docs/en/**/*.md", "xtuner/**/*.md"], {}),
    "FlagScale": (["examples/**/*.sh"], ["**/*.md"], {}),
    "RLHF-Reward-Modeling": ([], ["**/*.md"], {}),
    "Qwen2.5-VL": (["**/*.sh"], ["**/*.md"], {}),
    "dgxc-benchmarking": (["**/*.sh"], ["**/*.md"], {"**/*.yaml": ""}),
}


_SHORT = {  # SGLang's short flags → the spelling in a job
    **dict.fromkeys(("--tp", "--tp-size"), "--tensor-parallel-size"),
    **dict.fromkeys(("--dp", "--dp-size"), "--data-parallel-size"),
    **dict.fromkeys(("--pp", "--pp-size"), "--pipeline-parallel-size"),
    **dict.fromkeys(("--ep", "--ep-size", "--expert-parallel-size"), "--expert-parallel-size"),
}
# Notes that every line gets on a machine without GPUs or traffic data.
_ALWAYS = re.compile(
    r"cluster: this machine shows no GPU|this machine shows no GPU|traffic: the tokens of your users|"
    r"objective: add the limits|"
    r"launch.python: the interpreter|launch.path: your checkout|launch.metrics|launch: the container's image"
)

# Flag → the name of the size in a job.
_SIZES = {
    "num-layers": "layers",
    "hidden-size": "hidden",
    "num-attention-heads": "heads",
    "num-query-groups": "kv_heads",
    "ffn-hidden-size": "ffn",
    "num-experts": "experts",
    "moe-router-topk": "topk",
    "moe-ffn-hidden-size": "expert_ffn",
    "seq-length": "seq_len",
}
# The arbitrary model: heads that every degree divides, and small enough for every line.
_STAND_IN = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "head_dim": 128, "num_attention_heads": 64, "num_key_value_heads": 8, "num_experts": 256, "num_experts_per_tok": 8,
    "num_hidden_layers": 64, "vocab_size": 151936, "tie_word_embeddings": False,
}  # fmt: skip
_SETTING = re.compile(r"\+{0,2}[A-Za-z_][\w.]*=")
_NOT_MEASURED = ("neutral", "launcher", "machine")
_ELSEWHERE = ("port", "host", "model", "sequence-parallel", "vocab-size")  # or nothing, where tp is 1
# What a note asks a person to write or to mend before the job can be loaded.
_TO_FILL_IN = ("write what $", "no shell fills", "config.json", "name all nodes", "until this is fixed")


class Given(NamedTuple):
    """A line of `framework`: the arguments of `init`, run in `folder`, and the script with this command for bash."""

    framework: str
    name: str
    folder: Path
    words: list[str]
    script: Path | None
    engine: str = ""


class Read(NamedTuple):
    """The result of a line: its kind ("whole", "asked" or "wrong") and the reason. `waits`: the job is rejected until a
    value that a note asks for is filled in. `engines`: other targets that could tune it."""

    given: Given
    kind: str
    why: list[str]
    waits: bool = False
    engines: Sequence[str] = ()


def lines(folder: Path, made: Path) -> Iterator[Given]:
    """The lines of all frameworks below `folder`; code blocks are written to files in `made`."""
    for framework, (scripts, pages, files) in _WHERE.items():
        root = folder / framework
        for path in _files(root, scripts):
            if _STARTS.search(re.sub(r"^\s*#.*$", "", path.read_text(errors="replace"), flags=re.MULTILINE)):
                yield Given(framework, str(path.relative_to(root)), root, [str(path)], path)
        for path in _files(root, pages):
            text = path.read_text(errors="replace")
            for number, found in enumerate(_BLOCK.finditer(text)):
                block = re.sub(rf"^{re.escape(found[1])}", "", found[2], flags=re.MULTILINE) if found[1] else found[2]
                block = re.sub(r"^\$ ", "", block, flags=re.MULTILINE)
                if _STARTS.search(re.sub(r"^\s*#.*$", "", block, flags=re.MULTILINE)):
                    name = f"{path.relative_to(root)}#{number}"
                    script = made / f"{framework}-{re.sub(r'[^A-Za-z0-9]+', '-', name)}.sh"
                    script.write_text(block)
                    yield Given(framework, name, root, [str(script)], script)
        for pattern, program in files.items():
            for path in _files(root, [pattern]):
                name = str(path.relative_to(root))
                text = path.read_text(errors="replace")
                if program.startswith("# "):  # commands in the comments of a settings file
                    for number, found in enumerate(re.findall(rf"^#\s+({program[2:]} .*)", text, re.MULTILINE)):
                        script = made / f"{framework}-{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{number}.sh"
                        script.write_text(found)
                        yield Given(framework, f"{name}#{number}", root, [str(script)], script)
                    continue
                trains = re.search(r"^(base_model|model_name_or_path|stage)\s*:", text, re.MULTILINE)
                if (program and trains) or (not program and "vllm" in text):
                    yield Given(framework, name, root, [*program.split(), name] if program else [str(path)], None)


def _files(root: Path, patterns: list[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})


def kept_back(given: Given) -> bool:
    return hashlib.sha256(f"{given.framework}/{given.name}".encode()).digest()[0] % 2 == 1


def read(given: Given, verbs: bool) -> Read:
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(given.folder):
            text, notes = job_file(given.words, given.folder, given.engine)
    except AutoscoutError as error:
        return Read(given, "asked", [f"init: {error}"])
    made = tomllib.loads(text)
    started = launched(given)
    if given.engine == "megatron":  # whose job contains the script and its arguments
        started = started[next((i for i, word in enumerate(started) if word.endswith(".py")), 0) :]
    wrong = [*_of_words(made, started, notes), *_of_numbers(made, started, notes)]
    refused, other = _loaded(text, notes, verbs)
    wrong += other
    waits = bool(refused) and any(ask in " ".join(notes) for ask in _TO_FILL_IN)
    wrong += [f"refused: {refused}"] if refused and not waits else []
    asks = [note for note in notes if not _ALWAYS.match(note)]
    engines = [] if given.engine else re.findall(r"init --target (\w+)", " ".join(notes))
    return Read(given, "wrong" if wrong else "asked" if asks else "whole", wrong or asks, waits, engines)


def launched(given: Given) -> list[str]:
    """The arguments of the last command that starts ranks or a server, according to bash; [] if there is none."""
    if given.script is None:
        return []
    around = {name: os.environ[name] for name in ("HOME",)}
    every = [words for words in commands(given.script, given.folder, around) if not _NO_LAUNCH.search(words[0])]
    found = [words for words in every if _STARTS.search(" ".join(words))]
    return found[-1] if found else []


def _of_words(made: dict[str, Any], started: list[str], notes: list[str]) -> list[str]:
    """A sentence on the arguments that bash passes and the job lacks."""
    if not started:
        return []
    launch = made["launch"]
    told = " ".join(notes)
    line = launch.get("current") or launch.get("command", "")
    copied = [each["from"] for each in launch.get("render", [])]
    if "{port}" in line:  # the job's own launcher, whose ranks are compared elsewhere
        started = started[next((i for i, word in enumerate(started) if word.endswith(".py")), 0) :]
    ours = Counter(_parts(shlex.split(line)))
    theirs = Counter(w for w in _parts(started) if not any(f"/{path}".endswith(f"/{w}") for path in copied))
    prefix = Counter(_parts(launch.get("command_prefix", [])))
    environment = {f"{name}={value}" for name, value in launch.get("environment", {}).items()}
    lost = [w for w in (theirs - ours - prefix) if w not in environment and not _elsewhere(w, made) and w not in told]
    unread = [w for w in ours if re.search(r"[$`]", w)]
    if lost and unread and any(note.startswith(("launch.current", "launch.environment")) for note in notes):
        return []  # the user is asked, because bash does not know the value either
    if lost and any("conditions of the script" in note or "run as a whole" in note for note in notes):
        return []
    return [f"lost: {shlex.join(lost)[:300]}"] if lost else []


def _elsewhere(word: str, made: dict[str, Any]) -> bool:
    """Whether the job has this argument in other fields: the server's program, ports and hosts, a script's
    interpreter."""
    name = Path(word).name
    programs = (
        "python",
        "python3",
        "torchrun",
        "exec",
        "nohup",
        "env",
        "vllm",
        "serve",
        "--model",
        "-m",
        "--host",
        "--port",
    )
    return word == "" or name in programs or word.startswith("vllm.entrypoints") or word in ("0.0.0.0",)


def _parts(words: list[str]) -> Iterator[str]:
    """The arguments with normalized flags, paths and braces, and --flag=value as two arguments."""
    for word in words:
        flag, equals, value = word.partition("=")
        for part in (flag, value) if equals and flag.startswith("-") else (word,):
            name = part.replace("_", "-") if part.startswith("--") else part
            name = re.sub(r"\{(\{\w+\})\}", r"\1", name).strip("\r")
            yield os.path.normpath(name) if "/" in name else _SHORT.get(name, name)


def _of_numbers(made: dict[str, Any], started: list[str], notes: list[str]) -> list[str]:
    """Sentences on ranks and samples per step that differ from the second reading without a note."""
    line = " ".join(started)
    found = []
    ranks, counts = ranks_of(line), [node["count"] for node in made["cluster"]["nodes"]]
    if ranks and sum(counts) != ranks and not any(note.startswith("cluster") for note in notes):
        found.append(f"ranks: {sum(counts)}, by a second reading {ranks}")
    ours = made.get("traffic", {}).get("global_batch", 0)
    each = _number(line, "per[-_]device[-_]train[-_]batch[-_]size")
    shared = _number(line, "(?:sequence[-_]parallel|context[-_]parallel|tensor[-_](?:model[-_])?parallel)[-_]size")
    theirs = _number(line, "global[-_]batch[-_]size")
    if not theirs and each and not shared:
        theirs = each * (_number(line, "gradient[-_]accumulation[-_]steps") or 1) * sum(counts)
    if theirs and ours not in (0, theirs) and not any(note.startswith("traffic.global_batch") for note in notes):
        found.append(f"batch: {ours}, by a second reading {theirs}")
    return found


def ranks_of(line: str) -> int:
    """The number of ranks or GPUs in a line; 0 if it states none."""
    nodes = _number(line, "(?:nnodes|num_nodes|num_machines|trainer.nnodes)") or 1
    if each := _number(line, "(?:nproc[-_]per[-_]node|num_gpus|trainer.n_gpus_per_node)"):
        return nodes * each
    if total := _number(line, "num[-_]processes"):
        return total
    if re.search(r"vllm serve|openai\.api_server|sglang", line):
        tensor = _number(line, "(?:tensor[-_]parallel[-_]size|tp[-_]size|tp)") or _number(line, "tp", "-") or 1
        pipe = _number(line, "(?:pipeline[-_]parallel[-_]size|pp[-_]size)") or 1
        inside = "sglang" in line and "--enable-dp-attention" in line
        data = (
            1
            if inside
            else _number(line, "(?:data[-_]parallel[-_]size|dp[-_]size|dp)") or _number(line, "dp", "-") or 1
        )
        return tensor * pipe * data
    return 0


def _number(line: str, name: str, dash: str = "--") -> int:
    found = re.findall(rf"(?<![\w.-])(?:{dash}|\+?)(?:{name})[= ]'?(\d+)\b(?!\.)", line)
    return int(found[-1]) if found else 0


def _loaded(text: str, notes: list[str], verbs: bool) -> tuple[str, list[str]]:
    """(why the commands after `init` reject its job, once the kind of GPU and a config.json are filled in; differences
    between today's configuration and the line without a note)."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "job.toml"
        path.write_text(re.sub('"(GPU|cpu)"', '"b300"', text))
        (Path(name) / "config.json").write_text(json.dumps(_STAND_IN))
        try:
            job = load_job(path)
            space = JobSpace.of_job(job)
            with contextlib.suppress(NotImplementedError):
                space.reference  # noqa: B018
            said = [
                *notes,
                *target_of(job).notes_on_job(job),
                *([f.found for f in preflight(job, Path(name) / "kb")] if verbs else []),
            ]
            return "", [*_of_model(job), *_of_launch(job, space, said)]
        except AutoscoutError as error:
            return str(error).replace(str(path), "job.toml"), []
        except Exception as error:  # any exception is a defect of AutoScout
            return f"{type(error).__name__}: {error}", []


def _of_model(job: Job) -> list[str]:
    """Sentences on sizes that differ between line and job."""
    line = job.launch.current or job.launch.command
    ours = {**msgspec.to_builtins(job.model), "seq_len": job.traffic.seq_len} if job.model.layers else {}
    theirs = {name: _number(line, flag) for flag, name in _SIZES.items()}
    return [
        f"model: {name} {ours.get(name, 0)}, the line {n}"
        for name, n in theirs.items()
        if ours and n not in (0, ours.get(name, 0))
    ]


def _of_launch(job: Job, space: JobSpace, said: list[str]) -> list[str]:
    """Sentences on flags of the line that the launch of today's configuration lacks or changes."""
    reference = space.reference
    if reference is None or not job.launch.current:
        return []
    launch = target_of(job).launch(job, reference)
    words = (*launch.program, *(word for each in launched_words(launch) for word in each))
    line, exported = line_of(job), Line(words)
    if job.target == "vllm":  # whose launch command has no placeholders
        given, there = flags_in(line), flags_in(exported.of(["vllm", "serve", *words]))
        nested = {flag: words[0] for flag, words in there.items() if len(words) == 1}
        fields = {name: [value] for flag, word in nested.items() for name, value in spread(flag, word).items()}
        there = fields | there
    else:
        line, exported = (each.of(map(_unbraced, each.words)) for each in (line, exported))
        given, there = (_named(each) for each in (line, exported))
    asleep = " ".join(knob.sets for knob in declared(job).knob if knob.name not in reference.knobs)
    program = {"vllm": "vllm", "megatron": "megatron-lm"}.get(job.target, "")
    known = arguments(program) if program else {}
    told = " ".join([*said, *launch.missing])
    nearest = "not valid" in told  # the launch is of the nearest valid configuration
    there = {_spelt(flag): words for flag, words in there.items()}
    wrong = []
    for flag, words in given.items():
        kind, other = known.get(flag.partition(".")[0]), there.get(_spelt(flag))
        if kind is not None and (kind.kind in _NOT_MEASURED or not kind.changes(words)):
            continue
        if (
            (other is not None and not apart(words, other))
            or flag in told
            or flag in asleep
            or _spelt(flag) in _ELSEWHERE
        ):
            continue
        if not (nearest and (kind is None or kind.kind == "knob")):
            now = "not there" if other is None else " ".join(other)[:80]
            wrong.append(f"launch: {flag} {' '.join(words)[:80]} of the line is {now}")
    return wrong


def _named(line: Line) -> dict[str, list[str]]:
    """The line's flags and name=value arguments, each with its values."""
    flags = {flag: [word for word in words if not _SETTING.match(word)] for flag, words in line.flags.items()}
    return flags | {
        name: [value] for name, equals, value in (w.partition("=") for w in line.words) if _SETTING.match(name + equals)
    }


def _unbraced(word: str) -> str:
    """The argument without the doubled braces of a job file."""
    return word.replace("{{", "{").replace("}}", "}")


def _spelt(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("mine", "kept", "both"), default="mine")
    parser.add_argument("--only", default="")
    parser.add_argument("--name", default="")
    parser.add_argument("--show", choices=("whole", "asked", "wrong"), action="append", default=[])
    parser.add_argument("--sample", type=int, default=0, help="so many of each kind that is shown")
    parser.add_argument("--take", type=int, default=0, help="so many lines alone, drawn")
    parser.add_argument("--verbs", action="store_true", help="run `check` on each job, too")
    options = parser.parse_args()
    table: dict[str, Counter[str]] = {}
    shown: list[Read] = []
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(HOME=home, XDG_CACHE_HOME=home, HF_HOME=home)
        every = [
            given
            for given in lines(options.folder.resolve(), Path(home))
            if options.half in ("kept" if kept_back(given) else "mine", "both")
            and options.only in ("", given.framework)
            and options.name in given.name
        ]
        for given in random.Random(1).sample(every, min(options.take or len(every), len(every))):
            found = read(given, options.verbs)
            others = [read(given._replace(engine=engine), options.verbs) for engine in found.engines]
            for each in (found, *others):
                own = f"{given.framework} --target {each.given.engine}" if each.given.engine else given.framework
                for row in (own, "all"):
                    table.setdefault(row, Counter()).update([each.kind, *["waits"] * each.waits])
                if each.kind in options.show:
                    shown.append(each)
    if options.sample:
        shown = random.Random(0).sample(shown, min(options.sample, len(shown)))
    for found in shown:
        print(
            f"\n{found.given.framework} {found.given.engine} {found.given.name}: {found.kind}", *found.why, sep="\n    "
        )
    heads = ("read whole", "said what is asked", "of these refused till then", "wrong", "right or asked")
    print(f"\n| framework ({options.half}) | lines | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 2)}")
    for name, counts in sorted(table.items(), key=lambda row: row[0] == "all"):
        n = counts["whole"] + counts["asked"] + counts["wrong"]
        cells = [counts[kind] for kind in ("whole", "asked", "waits", "wrong")]
        print(f"| {name} | {n} | {' | '.join(map(str, cells))} | {1 - counts['wrong'] / n:.1%} |")


if __name__ == "__main__":
    main()
