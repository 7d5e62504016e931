"""Finds out which software and devices an experiment would use, with a probe that starts no experiment."""

import ast
import contextlib
import hashlib
import io
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterable
from pathlib import Path

from autoscout.running import processes, results
from kb import secrets
from kb.records import AutoscoutError, Job, content_hash

_LIMIT_S = 120.0
_NAMED = re.compile(r"\A#!(?:\S*/env +|/bin/sh\n\'\'\'exec\' )?(\S*python[\d.]*)")  # shebangs that pip writes
_HEAD = 512  # bytes of a program that are searched for its shebang
NOT_COMPARED = {"launcher"}


def target_python(job: Job) -> list[str]:
    """The command that starts the target's interpreter."""
    return [*job.launch.command_prefix, job.launch.python or sys.executable]


def of_program(program: str, path: str) -> str:
    """The Python interpreter that runs a program: the program itself if it is an interpreter, or else the interpreter
    in its shebang; "" if it has no such shebang. `path`: as in $PATH."""
    found = shutil.which(program, path=path)
    if found is None or Path(found).name.startswith("python"):
        return found or ""
    try:
        with open(found, "rb") as file:
            named = _NAMED.search(file.read(_HEAD).decode(errors="replace"))
    except OSError:
        return ""
    return (shutil.which(named[1], path=path) or "") if named else ""


def context_of(job: Job, environment: dict[str, str]) -> str:
    """Hash of everything that has to be equal for measurements to be comparable: workload, versions, devices, measuring
    code, and the command prefix (a container or a CPU binding changes runs, but is not part of the environment).
    """
    compared = {key: value for key, value in environment.items() if key not in NOT_COMPARED}
    return content_hash([job.id, compared, job.launch.transformer_engine, secrets.words(job.launch.command_prefix)])


def own_variables(job: Job) -> dict[str, str]:
    """An entry for a measurement's environment with the hash of the variables that the job sets, since they may affect
    measurements. Secrets are excluded, since they do not affect measurements."""
    return {"variables": content_hash(secrets.without(job.launch.environment))} if job.launch.environment else {}


def probe(command: list[str], interpreter: str) -> dict[str, str]:
    """Runs a command and returns the JSON object on its last line of output. Errors: AutoscoutError (exit 2)."""
    with results.writing("temporary files"):
        output = tempfile.TemporaryFile()  # noqa: SIM115 - `writing` is only for errors of creating it
    with output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise AutoscoutError(
                f"{interpreter}: the interpreter cannot be run ({_why(command[0], error)}); check launch.python", 2
            ) from error
        finished = processes.exited(process, _LIMIT_S)
        processes.end(process, 0.0)
        output.seek(0)
        printed = output.read().decode(errors="replace").strip()
    if not finished:
        raise AutoscoutError(
            f"{interpreter}: the interpreter did not answer within {_LIMIT_S:.0f} s; check launch.python", 2
        )
    last = printed.rsplit("\n", 1)[-1]
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise AutoscoutError(
            f"{interpreter}: the program does not work as a Python interpreter (it printed {last[-200:]!r}); "
            "check launch.python",
            2,
        )
    return found


def _why(program: str, error: OSError) -> str:
    """The error as text; if access to the program was denied, also the name of the file's owner."""
    reason = error.strerror or type(error).__name__
    if not isinstance(error, PermissionError):
        return reason
    if os.path.isdir(program):
        return "it is a folder"
    with contextlib.suppress(OSError, KeyError):
        return f"{reason}: it belongs to {pwd.getpwuid(os.stat(program).st_uid).pw_name}"
    return f"{reason}: its folder belongs to another user"


def hash_of(files: Iterable[Path]) -> str:
    """Hash of the code that measures, because measurements by different versions of it are not comparable. Comments
    and docstrings do not count."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(_statements(path.read_bytes()))
    return digest.hexdigest()[:8]


def _statements(source: bytes) -> bytes:
    """Python source without comments, docstrings and empty lines; unchanged if it cannot be parsed."""
    try:
        tree, lines = ast.parse(source), source.splitlines()
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1].decode()[:column].encode()
    except (SyntaxError, ValueError, tokenize.TokenError):
        return source
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                begins, ends = first.lineno - 1, (first.end_lineno or first.lineno) - 1
                around = lines[begins][: first.col_offset], lines[ends][first.end_col_offset :]
                lines[begins : ends + 1] = [b"".join(around), *[b""] * (ends - begins)]
    return b"\n".join(line.rstrip() for line in lines if line.strip())
