"""The command line. Its commands are in `verbs/` and import heavy packages only when they run: --help stays fast."""

import contextlib
import errno
import io
import locale
import os
import signal
import sys
from typing import NoReturn

import click

from tui.grouped import Verbs
from tui.hygiene import PlainStream
from tui.options import note
from tui.verbs import (
    about,
    benching,
    calibrating,
    demo,
    explaining,
    exporting,
    gating,
    kb,
    keeping,
    machine,
    predicting,
    protocol,
    shadowing,
    spaces,
    tuning,
    watching,
)


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="autoscout")
@click.pass_context
def cli(context: click.Context) -> None:
    """Finds the best configuration of an LLM training or serving job by running it, and remembers every measurement. On
    a terminal without a verb: the home screen, where you can make a new job from a config.json."""
    if context.invoked_subcommand is None:
        if watching.on_screen():
            watching.go_home()
        else:
            click.echo(context.get_help())


_HEADINGS: dict[str, tuple[click.Command, ...]] = {
    "Begin": (demo.demo, machine.init, machine.check, machine.doctor, machine.targets),
    "Tune": (tuning.tune, watching.watch, watching.steer, watching.stop, tuning.sessions),
    "Take the result": (tuning.best, explaining.why, exporting.export),
    "Keep it right": (gating.gate, gating.bisect, keeping.when, keeping.trace),
    "Understand a job without running it": (
        spaces.space,
        spaces.explain,
        predicting.predict,
        shadowing.shadow,
        tuning.profile,
    ),
    "What was learned": (kb.sql, kb.similar, kb.import_, kb.kb_),
    "AutoScout itself": (benching.bench, calibrating.calibrate, protocol.mcp, about.completion, about.man),
}
# One example for each verb, shown at the end of --help and in the manual page.
EXAMPLES = {
    "demo": "autoscout demo",
    "init": "autoscout init --out job.toml -- torchrun --nproc-per-node 8 train.py",
    "check": "autoscout check job.toml",
    "doctor": "autoscout doctor job.toml",
    "targets": "autoscout targets job.toml --audit",
    "tune": "autoscout tune job.toml --profiles 20 --wall 1h",
    "watch": "autoscout watch tiny-moe-session",
    "steer": "autoscout steer SESSION budget profiles=40",
    "stop": "autoscout stop SESSION",
    "sessions": "autoscout sessions --json",
    "best": "autoscout best SESSION --report result.html",
    "why": "autoscout why SESSION",
    "export": "autoscout export SESSION --format slurm",
    "gate": "autoscout gate SESSION",
    "bisect": "autoscout bisect v1.2 main --job job.toml",
    "when": "autoscout when SESSION http://localhost:8000",
    "trace": "autoscout trace http://localhost:8000",
    "space": "autoscout space llama-3.2-3b --list 5",
    "explain": "autoscout explain llama-3.2-3b tp=3",
    "predict": "autoscout predict llama-3.2-3b --best 5",
    "shadow": "autoscout shadow llama-3.2-3b tp=2",
    "profile": "autoscout profile job.toml mbs=4",
    "sql": "autoscout sql 'SELECT * FROM best'",
    "similar": "autoscout similar job.toml",
    "import": "autoscout import results.csv --job job.toml --dry-run",
    "kb": "autoscout kb check",
    "bench": "autoscout bench --job smallest-cpu --strategies autoscout,random",
    "calibrate": "autoscout calibrate",
    "mcp": "autoscout mcp",
    "completion": "autoscout completion bash",
    "man": "autoscout man | man -l -",
}
for _verbs in _HEADINGS.values():
    for _verb in _verbs:
        _verb.epilog = "\n\n".join(filter(None, (_verb.epilog, f"\b\nExample: {EXAMPLES[str(_verb.name)]}")))
        cli.add_command(_verb)
cli.headings = {heading: [str(v.name) for v in verbs] for heading, verbs in _HEADINGS.items()}  # type: ignore[attr-defined]

# Options of other tuners → ours, for error messages: click suggests by spelling, such as --detach for --budget.
_USUAL = {
    "--budget": "--profiles, --wall or --device-time",
    "--iterations": "--profiles",
    "--n-trials": "--profiles",
    "--output": "--out",
    "--time": "--wall",
    "--timeout": "--wall",
    "--trials": "--profiles",
}


def main() -> None:
    """Entry point. Every failure prints one sentence to stderr and sets a documented exit code."""
    from kb.refusal import AutoscoutError

    _open_closed_streams()
    _speak_utf8()
    os.umask(os.umask(0o077) | 0o077)  # makes journals, logs and the knowledge base private to the user
    sys.stdout, sys.stderr = PlainStream(sys.stdout), PlainStream(sys.stderr)  # type: ignore[assignment]
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except SystemExit:
        if isinstance(sys.stdout, PlainStream):
            raise
        _leave(128 + signal.SIGPIPE)  # the reader of the output has closed the pipe
    except click.exceptions.Abort:
        _leave(130)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.option_name in _USUAL:
            ours = _USUAL[error.option_name]
            error = click.UsageError(f"No such option '{error.option_name}'. Did you mean {ours}?", error.ctx)
        with contextlib.suppress(OSError):
            error.show()
        _suggest(error.format_message(), error)
        _leave(2)
    except AutoscoutError as error:
        note(str(error))
        _suggest(str(error), code=error.exit_code)
        _leave(error.exit_code)
    except OSError as error:
        note(_refused(error))
        _leave(1)
    except KeyboardInterrupt:
        _leave(130)
    except Exception as error:
        if os.environ.get("AUTOSCOUT_DEBUG"):
            raise
        note(f"internal error, please report it: {type(error).__name__}: {error} (AUTOSCOUT_DEBUG=1 shows where)")
        _leave(1)


def _leave(code: int) -> NoReturn:
    """Exits. Output that a reader who left has not taken is dropped, because Python would exit with 120 otherwise."""
    from tui.printing.status_line import discard

    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            discard(stream)
    sys.exit(code)


def _suggest(sentence: str, error: click.ClickException | None = None, code: int = 2) -> None:
    """Prints the command to try next, if one is known: for incomplete command lines, the verb's example."""
    from tui.next_step import FailedCommand, next_step
    from tui.options import every_session
    from tui.text import TRY, program

    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    with contextlib.suppress(OSError, ValueError):  # an argument may not be a valid path
        step = next_step(FailedCommand(sentence, sys.argv[1:], cli.commands, code, every_session(sys.argv[1:])))
        incomplete = isinstance(error, click.MissingParameter) or type(error) is click.UsageError
        if step or (incomplete and verb in EXAMPLES):
            click.echo(f"{TRY}{program()} {step or EXAMPLES[verb].removeprefix('autoscout ')}", err=True)


def _refused(error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and not error.filename:
        return "the current folder no longer exists; change to another"
    reason = error.strerror or str(error) or type(error).__name__
    written = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return f"{error.filename or ('output' if written else 'the system refuses')}: {reason}"


def _open_closed_streams() -> None:
    """Opens /dev/null in place of standard streams that the caller closed (`>&-`), also for processes that we start."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            its_own = os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is the closed stream's
            os.set_inheritable(its_own, True)
            setattr(sys, name, os.fdopen(its_own, mode, encoding="utf-8"))


def _speak_utf8() -> None:
    """Makes this and child processes use UTF-8 whatever the locale is, by restarting Python in UTF-8 mode if necessary.
    Characters that a stream cannot write become question marks."""
    if locale.getencoding().lower() != "utf-8" and not sys.flags.utf8_mode and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
