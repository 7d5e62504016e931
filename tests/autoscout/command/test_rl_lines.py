"""Launch lines of OpenRLHF and slime: which roles have devices of their own, what is predicted, what a knob sets."""

import shlex

import pytest
from click.testing import CliRunner

from autoscout.line.launch_line import Line
from autoscout.line.line_devices import devices
from autoscout.line.recognition import contents, recognised
from autoscout.space.explain import completed
from autoscout.targets.command.arguments import export_place, started
from autoscout.targets.command.preset import preset
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError
from tui.cli import cli

RAY = "ray job submit --address=http://127.0.0.1:8265 -- python3"
OPENRLHF = (
    f"{RAY} -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-4B --reward.remote_url reward.py "
    "--ref.num_nodes 1 --ref.num_gpus_per_node 8 --actor.num_nodes 1 --actor.num_gpus_per_node 8 --vllm.num_engines 4 "
    "--vllm.tensor_parallel_size 2 --train.colocate_all --vllm.enable_sleep --vllm.gpu_memory_utilization 0.6 "
    "--rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.batch_size 1024 --train.micro_batch_size 2 "
    "--rollout.micro_batch_size 4 --rollout.max_new_tokens 2048 --data.max_len 3072 --ds.packing_samples "
    "--ds.zero_stage 3 --actor.gradient_checkpointing_enable --algo.advantage.estimator rloo --ckpt.load_enable"
)
BEFORE = (
    f"{RAY} -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-4B --remote_rm_url reward.py --ref_num_nodes 1 "
    "--ref_num_gpus_per_node 8 --actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_num_engines 4 "
    "--vllm_tensor_parallel_size 2 --colocate_all_models --vllm_enable_sleep --vllm_gpu_memory_utilization 0.6 "
    "--rollout_batch_size 128 --n_samples_per_prompt 8 --train_batch_size 1024 --micro_train_batch_size 2 "
    "--micro_rollout_batch_size 4 --generate_max_len 2048 --max_len 3072 --packing_samples --zero_stage 3 "
    "--gradient_checkpointing --advantage_estimator rloo --load_checkpoint"
)
SLIME = (
    f"{RAY} train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate --hf-checkpoint Qwen/Qwen3-4B "
    "--ref-load /root/Qwen3-4B_torch_dist --load /root/Qwen3-4B_slime --save /root/Qwen3-4B_slime --save-interval 20 "
    "--num-rollout 3000 --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192 "
    "--global-batch-size 256 --tensor-model-parallel-size 2 --sequence-parallel --use-dynamic-batch-size "
    "--max-tokens-per-gpu 9216 --advantage-estimator grpo --use-kl-loss --rollout-num-gpus-per-engine 2 "
    "--sglang-mem-fraction-static 0.7"
)


@pytest.fixture
def space(tmp_path):
    def made(line: str, count: int = 8) -> JobSpace:
        job = tmp_path / "job.toml"
        job.unlink(missing_ok=True)
        written = CliRunner().invoke(cli, ["init", "--out", str(job), "--", *shlex.split(line)])
        assert written.exit_code == 0, written.output
        text = job.read_text()
        begin = text.rindex("nodes = [")
        job.write_text(f'{text[:begin]}nodes = [{{ device = "h100", count = {count} }}]\n')
        return JobSpace.of_job(load_job(job))

    return made


def line_of(space: JobSpace, **knobs) -> list[str]:
    whole = completed(space, knobs, space.reference)
    return shlex.split(str(started(space.job, whole, export_place(space.job)).line))


@pytest.mark.parametrize(
    ("line", "name", "gpus"),
    [
        (OPENRLHF, "openrlhf", 8),
        (BEFORE, "openrlhf-underscored", 8),
        (OPENRLHF.replace("--train.colocate_all", ""), "openrlhf", 24),  # actor, reference, engines
        (OPENRLHF.replace("--train.colocate_all", "--train.colocate_actor_ref"), "openrlhf", 16),
        (SLIME, "slime", 8),
        (SLIME.replace("--colocate", "--rollout-num-gpus 16"), "slime", 24),
        (SLIME.replace("train.py", "train_async.py"), "", 8),
    ],
)
def test_a_role_has_its_own_devices_unless_it_shares_them(line, name, gpus):
    read = Line(tuple(shlex.split(line)))
    assert recognised(read) == name
    assert sum(devices(read).counts) == gpus


def test_both_spellings_of_openrlhf_are_one_job(space):
    now, before = (predict(space(line), {}, None) for line in (OPENRLHF, BEFORE))
    assert now.value == pytest.approx(before.value)
    assert now.parts == pytest.approx(before.parts)
    assert {*now.parts} == {"rollout", "tail", "logprobs", "update", "weights"}


def test_every_setting_of_openrlhf_has_an_older_name():
    _, older = contents()["openrlhf-underscored"]
    assert "--train." not in str(older["knob"]) + str(older["line"]) + str(older["measuring"])
    assert preset("openrlhf-underscored").rule == preset("openrlhf").rule


def test_engines_that_share_devices_are_as_many_as_fit(space):
    """OpenRLHF asserts it: with tp 1 in place of 2 there are twice as many engines."""
    job = space(OPENRLHF)
    said = " ".join(line_of(job, tp=1))
    assert "--vllm.num_engines 8" in said
    assert "--vllm.tensor_parallel_size 1" in said
    assert "--vllm.num_engines 4" in " ".join(line_of(job)), "the present launch is not touched"


def test_samples_of_an_update_are_never_fewer(space):
    job = space(OPENRLHF.replace("--train.batch_size 1024", "--train.batch_size 48"))
    with pytest.raises(AutoscoutError, match="48 samples of an update do not divide into batches of 4 on 8 devices"):
        completed(job, {"mbs": 4}, job.reference)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("--rollout.n_samples_per_prompt 8", ""), "compares several answers to one prompt"),
        (("--vllm.num_engines 4", "--vllm.num_engines 2"), "2 engines of 2 devices use all 1 × 8 devices"),
    ],
)
def test_what_openrlhf_asserts_is_said_before_it_runs(tmp_path, change, says):
    job = tmp_path / "job.toml"
    line = shlex.split(OPENRLHF.replace(*change))
    written = CliRunner().invoke(cli, ["init", "--out", str(job), "--", *line])
    assert says in " ".join(f"{written.output} {written.exception}".split())


def test_a_critic_is_not_predicted(space):
    with pytest.raises(AutoscoutError, match=r"no simulator models algo\.advantage\.estimator=gae"):
        predict(space(OPENRLHF.replace("estimator rloo", "estimator gae")), {}, None)


def test_slime_with_one_update_takes_no_old_probabilities(space):
    once, twice = (
        predict(space(SLIME.replace("--global-batch-size 256", f"--global-batch-size {batch}")), {}, None).parts
        for batch in (256, 128)
    )
    assert twice["logprobs"] == pytest.approx(2 * once["logprobs"], rel=0.05), "the reference's alone, and both"
    plain = predict(space(SLIME.replace("--use-kl-loss", "")), {}, None).parts
    assert plain["logprobs"] == 0


def test_slime_trains_experts_and_its_devices_apart_generate(space):
    experts = SLIME.replace("Qwen/Qwen3-4B", "Qwen/Qwen3-30B-A3B", 1) + " --expert-model-parallel-size 8"
    assert predict(space(experts), {}, None).parts["update"] > 0
    apart = predict(space(SLIME.replace("--colocate", "--rollout-num-gpus 8"), 16), {}, None)
    shared = predict(space(SLIME), {}, None)
    assert apart.parts["update"] == pytest.approx(shared.parts["update"], rel=0.01)
    assert apart.parts["weights"] > shared.parts["weights"], "they cross the links"
