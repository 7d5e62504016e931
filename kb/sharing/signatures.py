"""Signs files and verifies signatures with ssh keys (`ssh-keygen -Y`), because users already have such keys."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from kb.records import AutoscoutError

UNSIGNED = "unsigned"
# ssh-keygen rejects signatures that were made in another namespace, that is, for another purpose.
_NAMESPACE = "autoscout"
_SUFFIX = ".sig"  # ssh-keygen appends this to the name of the signed file
_KEY = re.compile(r"((?:ssh|ecdsa|sk)-[\w@.-]+ [A-Za-z0-9+/]+={0,2})(?: .*)?", re.ASCII)
_LONGEST_S = 60.0


def signature_of(file: Path) -> Path:
    return file.with_name(file.name + _SUFFIX)


def sign(files: Iterable[Path], key: Path) -> int:
    """Signs files that have no signature, and returns their number. `key`: a private key, or the public key of a key
    pair in ssh-agent. Errors: AutoscoutError (exit 2) if the key cannot sign."""
    todo = [file for file in files if not signature_of(file).exists()]
    for file in todo:
        done = _run("sign", "-n", _NAMESPACE, "-f", str(key.expanduser()), str(file))
        if done.returncode:
            raise AutoscoutError(f"{key} cannot sign ({_printed(done)}); pass your own private ssh key with --sign", 2)
    return len(todo)


def public_key(file: Path) -> str:
    """Type and key from a file. Errors: AutoscoutError (exit 2) if the file is not a public ssh key."""
    try:
        found = _KEY.fullmatch(file.expanduser().read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise AutoscoutError(f"{file}: cannot be read ({error})", 2) from error
    if found is None:
        raise AutoscoutError(f"{file} is not a public ssh key; pass the file that ends in .pub", 2)
    return found[1]


def signers(files: Iterable[Path], keys: Mapping[str, str]) -> dict[Path, str]:
    """The author who signed each file (`keys`: author → public key); UNSIGNED if none of them did, "" if the signature
    does not match the file."""
    keys = {author: key for author, key in keys.items() if key}
    if not keys or shutil.which("ssh-keygen") is None:
        return dict.fromkeys(files, UNSIGNED)
    with tempfile.TemporaryDirectory() as folder:
        allowed = Path(folder) / "allowed_signers"
        allowed.write_text(
            "".join(f'{author} namespaces="{_NAMESPACE}" {key}\n' for author, key in sorted(keys.items()))
        )
        return {file: _signer(file, allowed) for file in files}


def _signer(file: Path, allowed: Path) -> str:
    signature = signature_of(file)
    if not signature.is_file():
        return UNSIGNED
    found = _run("find-principals", "-s", str(signature), "-f", str(allowed))
    if found.returncode or not found.stdout.strip():
        return UNSIGNED  # signed with an unknown key
    author = found.stdout.decode().split()[0]
    with open(file, "rb") as content:
        about = ("-f", str(allowed), "-I", author, "-n", _NAMESPACE, "-s", str(signature))
        return "" if _run("verify", *about, stdin=content).returncode else author


def _run(*arguments: str, stdin: int | IO[bytes] = subprocess.DEVNULL) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", *arguments],
            stdin=stdin,
            capture_output=True,
            timeout=_LONGEST_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AutoscoutError(f"cannot run ssh-keygen, which signs files ({error}); install OpenSSH's client") from error


def _printed(done: "subprocess.CompletedProcess[bytes]") -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
