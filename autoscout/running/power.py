"""A power limit on the GPUs of an experiment, set by nvidia-smi and restored afterwards.

The previous limits are written to a file before any limit is changed. If the process is killed, the next process that
measures on the machine restores them first. (Only one process measures at a time, see cluster/slots.py.)"""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from autoscout.line.visible_gpus import named
from autoscout.running import results
from autoscout.running.cluster import gpus
from kb.records import AutoscoutError, Configuration

KNOB = "power_cap"  # its values are per cent of a GPU's default limit
_FIELDS = "index,uuid,power.limit,power.default_limit,power.min_limit"
_LIMIT_S = 30.0


def left_path() -> Path:
    """The file with the previous limits, the same for all users of the machine."""
    return Path(tempfile.gettempdir()) / "autoscout-power.json"


@contextlib.contextmanager
def capped(configuration: Configuration) -> Iterator[None]:
    """Applies the configuration's limit to the GPUs in CUDA_VISIBLE_DEVICES (all if unset) while an experiment runs;
    the caller must hold the lock of the whole machine. Errors: AutoscoutError if the driver refuses."""
    restore()
    share = float(configuration.knobs.get(KNOB, 100)) / 100
    if share == 1.0:
        yield
        return
    known = _limits()
    with results.writing(left_path()):
        part = left_path().with_suffix(".part")
        part.write_text(json.dumps({index: now for index, (now, _, _) in known.items()}))
        os.replace(part, left_path())
    try:
        for index, (_, usual, least) in known.items():
            _set(index, max(least, share * usual))
        yield
    finally:
        restore()


def restore() -> None:
    """Restores the limits that were recorded by this process or one that was killed. Trusts only files of root or of
    this user, since the folder is world-writable. Errors: AutoscoutError if the driver refuses."""
    try:
        if left_path().stat().st_uid not in (0, os.geteuid()):
            return
        before = json.loads(left_path().read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError):  # the file is truncated, so no limit had been changed yet
        before = {}
    for index, watts in before.items():
        _set(index, watts)
    left_path().unlink(missing_ok=True)


def refused() -> str:
    """The reason why power limits cannot be set on this machine; "" if they can. Tries to set the present limits
    again."""
    try:
        for index, (now, _, _) in _limits().items():
            _set(index, now)
    except AutoscoutError as error:
        return str(error)
    return ""


def advice(configuration: Configuration) -> list[str]:
    """Instructions that the user must follow in addition to running an exported launch."""
    percent = configuration.knobs.get(KNOB, 100)
    if percent == 100:
        return []
    return [
        (
            f"a power limit of {percent} % of the default on every GPU (nvidia-smi -pl WATTS), because the "
            "measurement had this limit"
        )
    ]


def _limits() -> dict[str, tuple[float, float, float]]:
    """GPU index → (current, default, minimum) limit in watts."""
    visible = named(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    found = {}
    for line in gpus.asked(f"--query-gpu={_FIELDS}").splitlines():
        index, uuid, *watts = [cell.strip() for cell in line.split(",")]
        if not gpus.shown(visible, index, uuid):
            continue
        try:
            now, usual, least = map(float, watts)
        except ValueError:
            raise AutoscoutError(
                f"GPU {index}: the driver reports no power limit, so {KNOB} has no effect; remove it from [space]"
            ) from None
        found[index] = (now, usual, least)
    if not found:
        raise AutoscoutError(f"{KNOB} needs nvidia-smi, which shows no GPU here; remove it from [space]")
    return found


def _set(index: str, watts: float) -> None:
    program = shutil.which("nvidia-smi") or "nvidia-smi"
    try:
        command = [program, "-i", index, "-pl", f"{watts:.2f}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise AutoscoutError(
            f"GPU {index}: nvidia-smi cannot set its power limit to {watts:.0f} W ({error})"
        ) from error
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())[:200]
        raise AutoscoutError(
            f"GPU {index}: its power limit cannot be set to {watts:.0f} W ({reason}); run as root, or remove {KNOB} "
            "from [space]"
        )
