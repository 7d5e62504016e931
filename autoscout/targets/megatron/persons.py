"""The user's own training settings: those in the current command that are not knobs (optimizer, dropout, router, data).

During the search, losses of different layouts must be comparable, so there is no dropout and no load balancing, and the
learning rate is low. The final confirmation and exports use the user's settings, since load balancing can double the
speed of a mixture of experts."""

from collections.abc import Sequence

from autoscout.job.words import listed
from autoscout.line.flags import NUMBER, value_of
from autoscout.line.kinds import arguments, unknown, unnamed
from autoscout.running.cluster import devices
from autoscout.targets.current_launch import line_of
from autoscout.targets.megatron.arguments import SCRIPT
from autoscout.targets.megatron.newer import Flags, of_catalog
from kb.records import Job, Value

_OF_DTYPES = "--use-precision-aware-optimizer"  # without this flag, Megatron-LM rejects the dtypes in _DTYPES
_DTYPES = ("--main-grads-dtype", "--main-params-dtype")
PROGRAM = "megatron-lm"  # the program whose arguments are in line/arguments
_DATA = ("--data-path", "--data-args-path", "--per-split-data-args-path", "--train-data-path", "--mock-data")
# Megatron-LM's defaults that our experiments replace by different values.
_DEFAULTS: Flags = {"--attention-dropout": 0.1, "--hidden-dropout": 0.1}
_MORE = 10  # number of extra iterations, since running/worker/ending.py may lengthen the warm-up
NULL_TOKENIZER = "NullTokenizer"


def persons_flags(job: Job) -> Flags:
    """Returns the flags of `launch.current` that neither the job nor a knob sets, with the defaults in _DEFAULTS added;
    {} without a current command. Errors: AutoscoutError (exit 2) for a command that cannot be parsed."""
    found = line_of(job).after(SCRIPT)
    needed = {_OF_DTYPES} if found.keys() & {*_DTYPES} else set[str]()
    of_knobs = _of_allowed_knobs(job)
    return (_DEFAULTS if found else {}) | {
        flag: _plain(words)
        for flag, words in found.items()
        if flag in needed or (_measured_where(flag) != "job" and flag not in of_knobs)
    }


def _of_allowed_knobs(job: Job) -> set[str]:
    """Returns the flags of knobs that [space] names. Other knobs are not tuned, so the user's flags stay."""
    named = {*job.space.allow, *job.space.fix, *job.space.limit}
    return {flag for name, knob in of_catalog().items() if name in named for flag in knob.sets.split(", ")}


def while_searching(job: Job) -> Flags:
    """Returns the user's settings that are used while layouts are compared. With the user's own Megatron-LM, these are
    all settings that keep losses comparable."""
    if not job.launch.path:
        return {flag: value for flag, value in persons_flags(job).items() if _measured_where(flag) in ("always", "job")}
    return {
        flag: value
        for flag, value in _measured(job).items()
        if _measured_where(flag) != "end" and kind_of(flag) != "workload"
    }


def in_the_end(job: Job) -> Flags:
    """Returns the settings of the final confirmation; {} if they equal those of the search."""
    found = _measured(job)
    if not job.launch.path:
        found = {flag: value for flag, value in found.items() if _measured_where(flag)}
    return found if found != while_searching(job) else {}


def _measured(job: Job) -> Flags:
    return {flag: value for flag, value in persons_flags(job).items() if kind_of(flag) != "neutral"}


def _measured_where(flag: str) -> str:
    known = arguments(PROGRAM).get(flag)
    return known.measured if known else ""


def kind_of(flag: str) -> str:
    """Returns the kind (line/kinds.py) of Megatron-LM's argument of that name; "" if there is none."""
    known = arguments(PROGRAM).get(flag)
    return known.kind if known else ""


def unmeasured(job: Job, kinds: Sequence[str]) -> list[str]:
    """Returns up to two sentences: one on arguments of these kinds that exports have but experiments lack, and one on
    arguments that no release of Megatron-LM has and the user has not declared neutral."""
    there, line = persons_flags(job), line_of(job).after(SCRIPT)
    left = there.keys() - while_searching(job).keys() - in_the_end(job).keys()
    known = arguments(PROGRAM)
    without = [f for f in line if f in left and kind_of(f) in kinds and known[f].changes(line[f])]
    strange = [flag for flag in unknown(PROGRAM, line) if flag not in job.launch.neutral]
    found = []
    if without:
        found.append(
            f"no experiment uses {listed(without)}, which AutoScout's own training loop does not support; exports keep "
            "your values; to measure with them, set launch.path to your checkout of Megatron-LM"
        )
    measured = "used in experiments" if job.launch.path else "left out of experiments"
    return found + unnamed("Megatron-LM", strange, f"exported as you wrote it, and {measured}")


def stand_ins(job: Job, given: Flags) -> Flags:
    """Returns the flags that the user's script gets in experiments: synthetic data, a low learning rate, a log line per
    iteration."""
    found: Flags = {
        "--train-iters": job.launch.warmup + job.launch.iterations + _MORE,
        "--lr-decay-style": "constant",
        "--log-interval": 1,
        "--eval-iters": 0,
        "--eval-interval": 10**6,
    }
    if devices.device_kind(job) == "cpu":
        found["--distributed-backend"] = "gloo"
    if "--lr" not in given:
        found["--lr"] = 1e-5
    if not any(flag in given for flag in _DATA):
        found |= {"--mock-data": True, "--tokenizer-type": NULL_TOKENIZER}
        found |= vocabulary(job, NULL_TOKENIZER)
    return found


def vocabulary(job: Job, tokenizer: object) -> Flags:
    """Returns --vocab-size for a null tokenizer, reduced by the one token that it adds; {} for tokenizers with a
    vocabulary."""
    return {"--vocab-size": job.model.vocab - 1} if tokenizer == NULL_TOKENIZER else {}


def _plain(values: list[str]) -> Value | list[str]:
    if len(values) != 1:
        return values or True
    return value_of(values[0]) if NUMBER.fullmatch(values[0]) else values[0]
