"""An experiment writes where it is: neither over the user's checkpoints nor to a hub, and it begins anew."""

import pytest

from autoscout.machine.starting import job_file
from autoscout.targets.command.arguments import Place, started
from autoscout.targets.jobs import JobSpace, load_job

HF = "--output_dir /data/mine --push_to_hub True --resume_from_checkpoint /data/mine/checkpoint-500 --bf16 True"
OURS = ["--output_dir", "here/out"]


@pytest.mark.parametrize(
    ("line", "has"),
    [
        (f"torchrun --nproc-per-node 2 run_clm.py --per_device_train_batch_size 2 {HF}", OURS),
        (f"torchrun --nproc-per-node 2 sft.py --per_device_train_batch_size 2 {HF}", OURS),
        (
            "llamafactory-cli train sft.yaml output_dir=/data/mine push_to_hub=true resume_from_checkpoint=/data/mine",
            ["output_dir=here/out", "push_to_hub=false", "resume_from_checkpoint=null"],
        ),
        (
            "torchrun --nproc-per-node 2 -m torchtitan.train --training.local_batch_size 8 --dump_folder /data/mine",
            ["--dump_folder", "here/out"],
        ),
        (
            "torchrun --nproc-per-node 2 run_recipe.py checkpoint.save=/data/mine checkpoint.load=/data/mine",
            ["checkpoint.save=null", "checkpoint.load=null"],
        ),
        ("torchrun --nproc-per-node 2 pretrain_gpt.py --save /data/mine --load /data/mine", []),
    ],
)
def test_the_users_folder_and_hub_are_left_alone(line, has, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sft.yaml").write_text("per_device_train_batch_size: 2\n")
    words = line.split()
    (tmp_path / "job.toml").write_text(job_file(words, tmp_path)[0])
    job = load_job(tmp_path / "job.toml")
    place = Place(folder="here", port="1", iterations="12")
    found = started(job, JobSpace.of_job(job).reference, place).words
    assert not [word for word in found if "/data/mine" in word or word in ("push_to_hub=true", "--push_to_hub")]
    assert " ".join(has) in " ".join(found) or set(has) <= set(found)


@pytest.mark.parametrize("line", ["trl sft --config sft.yaml", "accelerate launch run_clm.py --config sft.yaml"])
def test_a_file_of_settings_pushes_nothing_either(line, tmp_path, monkeypatch):
    """The flag was only left out, so that the file's own word counted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sft.yaml").write_text("per_device_train_batch_size: 2\npush_to_hub: true\n")
    (tmp_path / "job.toml").write_text(job_file(line.split(), tmp_path)[0])
    job = load_job(tmp_path / "job.toml")
    place = Place(folder="here", port="1", iterations="12")
    assert "--push_to_hub=false" in started(job, JobSpace.of_job(job).reference, place).words
