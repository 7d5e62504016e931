"""What each argument of Megatron-LM is to a job: measured as it is exported, or said."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from autoscout.line.kinds import Argument, Kind, arguments
from autoscout.line.launch_line import Line
from autoscout.machine.starting import job_file
from autoscout.targets.current_launch import line_of
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.megatron import persons
from autoscout.targets.megatron.training_line import dense_layers, not_had
from autoscout.targets.target import target_of
from autoscout.targets.vllm import flag_kinds
from kb.records import AutoscoutError, Configuration, Job

sys.path.insert(0, "tests/tools")
import argument_tables

MEGATRON = arguments("megatron-lm")
FLAGS = """pretrain_gpt.py --num-layers 8 --hidden-size 128 --num-attention-heads 4 --seq-length 128
--micro-batch-size 1 --global-batch-size 8 --vocab-size 1000 --tokenizer-type NullTokenizer""".replace("\n", " ")
MINE = Configuration({"mbs": 1, "tp": 1, "dp": 2})


def job(more: str = "", neutral: tuple[str, ...] = ()) -> Job:
    found = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
    launch = msgspec.structs.replace(found.launch, current=f"{FLAGS} {more}", neutral=[*neutral])
    return msgspec.structs.replace(found, launch=launch)


def other(known: Argument) -> str:
    """A value that is not the program's default; "" for a switch, which has none."""
    number = re.fullmatch(r"\d+(\.\d+)?", known.usual)
    return "" if not known.usual else f"{float(known.usual) + 1:g}" if number else "another"


@pytest.mark.parametrize("name", sorted(MEGATRON))
def test_what_is_exported_was_measured_or_it_is_said(name: str) -> None:
    """--mtp-num-layers 1 and --window-size were measured without and exported with, and nothing said so."""
    known = MEGATRON[name]
    one = job(f"{name} {other(known)}")
    said = " ".join([not_had(line_of(one)), *persons.unmeasured(one, ("knob", "numerics"))])
    exported = persons.persons_flags(one).keys() & {name}
    measured = persons.while_searching(one) | persons.in_the_end(one)
    if exported and name not in measured and known.kind in ("knob", "model", "numerics", "refused"):
        assert name in said
    if known.kind == "refused":
        assert not_had(line_of(one))


@pytest.mark.parametrize(
    "flags",
    [
        "--cuda-graph-warmup-steps 4 --fp8-margin 1 --fp8-amax-history-len 1024",
        "--tp-comm-overlap --no-overlap-p2p-communication --cp-comm-type a2a --te-rng-tracker",
        "--moe-permute-fusion --moe-token-dispatcher-type flex --ddp-bucket-size 1000",
        "--no-bias-swiglu-fusion --disable-bias-linear --group-query-attention",
        "--decoder-first-pipeline-num-layers 1 --account-for-loss-in-pipeline-split",
    ],
)
def test_what_todays_configuration_has_otherwise_than_the_line_is_said(flags: str) -> None:
    """Arguments that a job or a knob decides, and this job's do not, were dropped in silence."""
    one = job(flags)
    said = " ".join(target_of(one).notes_on_job(one))
    assert [word for word in flags.split() if word.startswith("--") and word not in said] == []


def test_switches_that_do_nothing_are_not_named_and_a_flag_without_its_value_is_no_crash() -> None:
    one = job("--sequence-parallel --recompute-activations --position-embedding-type learned_absolute")
    assert "is ignored" not in " ".join(target_of(one).notes_on_job(one))
    assert target_of(job("--num-layers-per-virtual-pipeline-stage")).notes_on_job(one) is not None


def test_every_argument_of_the_recorded_exports_has_a_kind() -> None:
    flags = {
        flag
        for row in msgspec.json.decode(Path("fixtures/recorded/megatron-lm.json").read_bytes())["rows"]
        for flag in row["flags"]
    }
    assert flags <= MEGATRON.keys()
    assert {MEGATRON[flag].kind for flag in flags} <= {"knob", "model", "workload", "numerics", "neutral"}


@pytest.mark.parametrize("more", ["--mtp-num-layers 1", "--window-size 128,0", "--hybrid-override-pattern M*M-"])
def test_a_line_of_another_model_is_refused_by_name(more: str, tmp_path: Path) -> None:
    with pytest.raises(AutoscoutError, match=f"has {more.replace('*', '.')}, which neither"):
        job_file(shlex.split(f"torchrun --nproc-per-node 2 {FLAGS} {more}"), tmp_path, "megatron")
    assert [text for text in target_of(job(more)).problems(job(more)) if more in text]


@pytest.mark.parametrize("more", ["--mtp-num-layers 0", "--hybrid-attention-ratio 0", "--optimizer adam"])
def test_a_default_that_is_said_changes_nothing(more: str) -> None:
    assert not not_had(line_of(job(more)))


@pytest.mark.parametrize(
    ("pattern", "dense"),
    [
        ("1", 0),
        ("([1]*8)", 0),
        ("[0,0,1,1,1,1,1,1]", 2),
        ("([0]*1+[1]*7)", 1),
        ("[0]+[1]*7", 1),
        ("2", None),
        ("([1,0]*4)", None),
        ("[1]*9999999999", None),
        ("__import__('os')", None),
    ],
)
def test_the_layers_with_experts_are_read_as_megatron_lm_reads_them(pattern: str, dense: int | None) -> None:
    assert dense_layers({"--moe-layer-freq": [pattern]}) == dense


def test_alternating_layers_are_refused_at_once_and_all_of_experts_are_not(tmp_path: Path) -> None:
    line = (
        f"{FLAGS} --disable-bias-linear --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 64 --moe-layer-freq"
    )
    with pytest.raises(AutoscoutError, match=r"has --moe-layer-freq \(\[1,0\]\*4\), which neither"):
        job_file(shlex.split(f"torchrun {line} '([1,0]*4)'"), tmp_path, "megatron")
    for pattern in ("([1]*8)", "[0,0,1,1,1,1,1,1]"):
        path = tmp_path / "job.toml"
        path.write_text(
            job_file(shlex.split(f"torchrun --nproc-per-node 2 {line} '{pattern}'"), tmp_path, "megatron")[0]
        )
        assert load_job(str(path)).model.experts == 8


def test_an_argument_of_no_release_is_neutral_once_the_person_said_so() -> None:
    strange = job("--my-own 3")
    assert "no known version of Megatron-LM has --my-own" in " ".join(target_of(strange).notes_on_job(strange))
    assert "no known version of Megatron-LM has --my-own" in " ".join(target_of(strange).launch(strange, MINE).missing)
    said = job("--my-own 3", ("--my-own",))
    assert "--my-own" not in " ".join(persons.unmeasured(said, ()))


def _server(more: str) -> Job:
    found = load_job("fixtures/jobs/llama-3-8b-serve.toml")
    launch = msgspec.structs.replace(found.launch, current=f"vllm serve meta-llama/Llama-3-8B {more}", model_path="")
    return msgspec.structs.replace(found, launch=launch)


VLLM = arguments("vllm")


# Values that vLLM would read, of arguments without a default that are no switches.
_READ = {
    "--quantization": "awq",
    "--speculative-config": '{"method": "ngram", "num_speculative_tokens": 3}',
    "--compilation-config": '{"mode": 0}',
    "--kv-cache-dtype": "fp8_e5m2",
    "--model": "another/model",
}
# Those that the model of the job cannot have, which is said.
_IMPOSSIBLE = {"--enable-eplb": "--enable-eplb", "--decode-context-parallel-size": "decode context parallel needs"}


@pytest.mark.parametrize("name", sorted(n for n in VLLM if VLLM[n].kind in ("knob", "model", "numerics", "refused")))
def test_what_a_serve_line_says_is_exported_or_it_is_said(name: str) -> None:
    known = VLLM[name]
    one = _server(shlex.join(["--port", "8001", name, *filter(None, [_READ.get(name) or other(known)])]))
    refused = flag_kinds.not_had(line_of(one))
    assert bool(refused) == (known.kind == "refused")
    if refused:
        assert name in refused
        return
    if name in _IMPOSSIBLE:
        with pytest.raises(AutoscoutError, match=_IMPOSSIBLE[name]):
            JobSpace.of_job(one).reference  # noqa: B018
        return
    launch = target_of(one).launch(one, JobSpace.of_job(one).reference)
    exported = {flag.partition(".")[0] for flag in launch.arguments}
    if name not in {*exported, "--model"}:
        assert name in " ".join(target_of(one).notes_on_job(one) + launch.missing)


def test_an_argument_of_no_vllm_is_named_until_the_person_calls_it_neutral() -> None:
    one = _server("--my-own 3")
    assert "no known version of vLLM has --my-own" in " ".join(flag_kinds.notes(one))
    launch = msgspec.structs.replace(one.launch, neutral=["--my-own"])
    assert not flag_kinds.notes(msgspec.structs.replace(one, launch=launch))


@pytest.mark.parametrize("program", ["megatron-lm", "vllm", "deepspeed", "hf-trainer"])
def test_every_argument_of_a_table_has_a_kind(program: str) -> None:
    assert arguments(program)
    assert {known.kind for known in arguments(program).values()} <= {*get_args(Kind)}


def test_the_page_of_arguments_is_what_the_tables_say() -> None:
    assert argument_tables.page() == Path("docs/lab/arguments.md").read_text(), "run: argument_tables.py --page"


def test_what_a_trainers_line_says_is_measured_as_it_is_exported(tmp_path: Path) -> None:
    """All arguments of TrainingArguments at once, each with a value that is not its default; a knob's has the value of
    the line in the configuration that the line is."""
    said = {name: other(known) or "1" for name, known in arguments("hf-trainer").items() if name != "--deepspeed"}
    said |= {"--per_device_train_batch_size": "2", "--gradient_accumulation_steps": "4", "--max_steps": "50"}
    given = [word for name, value in said.items() for word in (name, value)]
    line = ["torchrun", "--nproc-per-node", "2", "run_clm.py", "--model_name_or_path", "gpt2", *given]
    path = tmp_path / "job.toml"
    path.write_text(job_file(line, tmp_path)[0])
    one = load_job(str(path))
    exported = Line(tuple(target_of(one).launch(one, JobSpace.of_job(one).reference).program))
    assert {name for name in said if exported.value(name) is None} == {"--fsdp"}  # which does nothing on CPU ranks
    assert exported.value("--gradient_accumulation_steps") == 4


def test_what_a_ds_config_says_is_exported_as_it_is(tmp_path: Path) -> None:
    """All keys that DeepSpeed's models have with a number or a switch at once, each with a value that is not its
    default; the settings of stage 3 in the spelling of the ds_config."""
    sample = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    said: dict[str, object] = {**sample, "bf16.enabled": True, "zero_optimization.stage": 3}
    said |= {f"zero_optimization.offload_{what}.device": "cpu" for what in ("param", "optimizer")}
    for name, known in arguments("deepspeed").items():
        number = re.fullmatch(r"\d+(\.\d+)?", known.usual)
        if name.startswith("--") or name in {*said, "fp16.enabled"} or not (number or known.usual in ("True", "False")):
            continue
        said[name] = float(other(known)) if number else known.usual == "False"
    config: dict[str, object] = {}
    for name, value in said.items():
        _put(config, name.split("."), value)
    (tmp_path / "ds.json").write_text(json.dumps(config))
    line = ["deepspeed", "--num_gpus", "2", "train.py", "--deepspeed", "--deepspeed_config", str(tmp_path / "ds.json")]
    (tmp_path / "job.toml").write_text(job_file(line, tmp_path)[0])
    one = load_job(str(tmp_path / "job.toml"))
    (text,) = target_of(one).launch(one, JobSpace.of_job(one).reference).files.values()
    exported = dict(_leaves(json.loads(text)))
    spelt = {name.replace("zero_optimization.stage3_", "zero_optimization."): v for name, v in exported.items()}
    assert {n: v for n, v in said.items() if (exported | spelt).get(n) != v} == {}
    assert not [note for note in target_of(one).notes_on_job(one) if "because it has no such setting" in note]


def _put(into: dict[str, Any], path: list[str], value: object) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _leaves(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield before + name, value
