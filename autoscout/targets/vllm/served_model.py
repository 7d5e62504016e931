"""The model that an engine serves (a folder of the user, or random weights) and its identity in measurements."""

import contextlib
import hashlib
import json
import os
import subprocess
from pathlib import Path

from autoscout.running import interpreter, results
from autoscout.targets.vllm import arguments as vllm
from kb import door
from kb.records import AutoscoutError, Job, content_hash, shape
from kb.user_folders import user_folder

OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}  # no downloads, no telemetry
_MAKES = Path(__file__).parent / "worker" / "model.py"
_LIMIT_S = 900.0


def model_folder(job: Job) -> str:
    """Returns the folder of the served model. Errors: AutoscoutError if a random model cannot be created."""
    return job.launch.model_path or random_model(job)


def random_model(job: Job) -> str:
    """Returns the folder of a model of the job's shape with random weights, cached in the user's cache folder. Errors:
    AutoscoutError if it cannot be created."""
    config = json.dumps(vllm.model_config(job), sort_keys=True)
    cache = user_folder("XDG_CACHE_HOME", ".cache") / "autoscout" / "models"
    folder = cache / content_hash([config, _MAKES.read_text()])
    if not folder.is_dir():
        with results.writing(cache):
            cache.mkdir(parents=True, exist_ok=True)
        command = [*interpreter.target_python(job), str(_MAKES), str(folder), config]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIMIT_S,
                env=os.environ | OFFLINE,
            )
        except subprocess.TimeoutExpired as error:
            raise AutoscoutError(
                f"{folder}: a model with random weights was not made within {_LIMIT_S:.0f} s; set "
                "launch.model_path to the model's own folder"
            ) from error
        if done.returncode:
            output = done.stderr.decode(errors="replace").strip().rsplit("\n", 1)[-1]
            raise AutoscoutError(f"{folder}: cannot make a model with random weights ({output[:300]})")
    return str(folder)


def draft_of(job: Job) -> str:
    """Returns the draft method and model, as part of a measurement's key."""
    draft = job.launch.draft
    return f"{draft.method} {Path(draft.model).name}".strip() if draft else ""


def model_of(job: Job) -> str:
    """Returns the served model, as part of a measurement's key. Errors: AutoscoutError (exit 2) if launch.model_path is
    not a model folder, or its shape differs from the job's."""
    path = Path(job.launch.model_path)
    if not job.launch.model_path:
        return "random weights"
    try:
        config = door.parsed_json((path / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise AutoscoutError(
            f"launch.model_path = '{path}' is not a model folder: it has no readable config.json ({error})", 2
        ) from error
    m = shape(job.model)
    wanted = {"hidden_size": m.hidden, "num_hidden_layers": m.layers, "vocab_size": m.vocab}
    other = [
        f"{key} {config[key]} (the job: {value})" for key, value in wanted.items() if config.get(key, value) != value
    ]
    if other:
        raise AutoscoutError(
            f"launch.model_path = '{path}' contains a different model from [model]: {', '.join(other)}", 2
        )
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    with contextlib.suppress(OSError):
        for file in sorted(path.glob("*.safetensors")):
            digest.update(f"{file.name} {file.stat().st_size}".encode())
    return f"{path.name} {digest.hexdigest()[:8]}"
