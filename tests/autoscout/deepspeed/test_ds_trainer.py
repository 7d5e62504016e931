"""The Hugging Face Trainer on two CPU ranks with the real DeepSpeed, every value of its ds_config "auto"."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import verbs
from test_ds_engine import PYTHON


def _trainer() -> bool:
    return (
        PYTHON.exists()
        and not subprocess.run([PYTHON, "-c", "import transformers, accelerate"], check=False).returncode
    )


pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-deepspeed: make .venv-deepspeed/ready"),
]
AUTO = {
    **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"),
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {**dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto"), "torch_adam": True},
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto"),
    },
    "zero_optimization": {
        "stage": "auto",
        **dict.fromkeys(("reduce_bucket_size", "stage3_prefetch_bucket_size"), "auto"),
        "stage3_param_persistence_threshold": "auto",
    },
    "autotuning": {"enabled": True, "max_train_batch_size": 8, "max_train_micro_batch_size_per_gpu": 4},
}
FLAGS = (
    "--deepspeed ds_config.json --output_dir out --use_cpu True --max_steps 40 --logging_steps 1 "
    "--save_strategy no --report_to none --disable_tqdm True"
)


def test_everything_auto_is_tuned_through_the_trainer(tmp_path, monkeypatch):
    if not _trainer():
        pytest.skip(f"no transformers in {PYTHON}")
    shutil.copy(Path(__file__).parent / "trains_hf.py", tmp_path / "train.py")
    (tmp_path / "ds_config.json").write_text(json.dumps(AUTO))
    monkeypatch.chdir(tmp_path)
    ops = os.environ.get("TORCH_EXTENSIONS_DIR", str(PYTHON.parents[1] / "ops"))
    asked = ["--script", f"train.py {FLAGS}", "--gpus", 2, "--python", PYTHON, "--loss", "'loss': '?([0-9.]+)"]
    done = verbs.run("tune", "ds_config.json", *asked, "--profiles", 3, "--kb", "kb", TORCH_EXTENSIONS_DIR=ops)
    assert done.returncode == 0, done.stderr
    results = tmp_path / "autotuning_results"
    info = json.loads((results / "profile_model_info" / "model_info.json").read_text())
    assert info["num_params"] > 2 * 12 * 64 * 64  # of its two layers, by DeepSpeed's engine
    runs = [json.loads(path.read_text()) for path in results.glob("z*/metrics.json")]
    assert len(runs) >= 3
    assert all(run["throughput"] > 0 for run in runs)
    best = json.loads((results / "ds_config_optimal.json").read_text())
    micro, steps = best["train_micro_batch_size_per_gpu"], best["gradient_accumulation_steps"]
    assert (best["train_batch_size"], micro * steps * 2) == (8, 8)
    assert best["gradient_clipping"] == "auto"  # left to the Trainer
    command = (results / "cmd_optimal.txt").read_text().split()
    assert command[command.index("--per_device_train_batch_size") + 1] == str(micro)
    assert command[command.index("--gradient_accumulation_steps") + 1] == str(steps)
