"""Iterations of RL that were never run: their phases by prediction, their memory beside an engine, and placements."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from job_files import written

from autoscout.simulate.encode import of_configurations, of_job
from autoscout.simulate.ensemble import Simulators
from autoscout.simulate.iteration.iteration import Iteration
from autoscout.simulate.iteration.rollouts import lengths
from autoscout.space.explain import completed
from autoscout.targets.command.arguments import export_place, started
from autoscout.targets.jobs import JobSpace, load_job, simulators_of
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError, Measurement, Traffic
from tui.cli import cli

VERL = """
name = "verl"
task = "rl"
target = "command"
[objective]
maximize = "tokens_per_s_per_gpu"
[launch]
script = "verl"
current = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 \
data.max_prompt_length=512 data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 \
trainer.n_gpus_per_node=8 trainer.nnodes=1"
[model]
preset = "qwen2.5-7b"
dtype = "bf16"
[traffic]
seq_len = 1536
input_len = 256
output_len = 512
[cluster]
nodes = [{ device = "h100", count = 8 }]
"""
TRL = """
name = "trl"
task = "rl"
target = "command"
[objective]
maximize = "samples_per_s"
[launch]
script = "grpo"
current = "accelerate launch --use_fsdp --num_processes 8 grpo.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct \
--output_dir out --per_device_train_batch_size 8 --gradient_accumulation_steps 4 --num_generations 8 \
--max_completion_length 1024 --use_vllm True --vllm_gpu_memory_utilization 0.6 --beta 0.04"
[space]
allow = ["vllm"]
[model]
preset = "qwen2.5-7b"
dtype = "bf16"
[traffic]
seq_len = 1536
global_batch = 256
input_len = 256
output_len = 512
[cluster]
nodes = [{ device = "h100", count = 8 }]
"""
SPLIT = ("[launch]", '[space]\nallow = ["placement"]\n[launch]')


@pytest.fixture
def space(tmp_path):
    return lambda text, *changes: JobSpace.of_job(load_job(written(tmp_path, text, *changes)))


def phases(space, **knobs):
    found = predict(space, knobs, None)
    assert found.parts_of == "iteration"
    return found, found.parts


def test_an_iteration_of_verl_on_8_and_64_gpus(space):
    one, parts = phases(space(VERL))
    assert all(parts[phase] > 0 for phase in ("rollout", "tail", "logprobs", "update", "weights"))
    tokens = 4096 * 768
    assert one.value == pytest.approx(tokens / sum(parts.values()) / 8, rel=0.05)
    many, spread = phases(space(VERL, ("count = 8", "count = 64"), ("nnodes=1", "nnodes=8")))
    assert sum(parts.values()) / 8 < sum(spread.values()) < sum(parts.values()) / 2
    assert spread["tail"] > parts["tail"] / 2, "the longest answer takes as long on more devices"
    assert many.value < one.value, "so that each does less"


def test_an_engine_that_stays_is_refused_before_anything_is_run(space, tmp_path):
    awake = space(TRL)
    with pytest.raises(
        AutoscoutError, match=r"training alone takes \d+ of 79.1 GiB and fits; together with the engine"
    ) as told:
        predict(awake, {}, None)
    assert told.value.exit_code == 3
    assert "--vllm_enable_sleep_mode" in str(told.value)
    found, parts = phases(awake, sleep=True)
    assert found.memory is not None
    assert found.memory.oom_probability < 0.1
    assert parts["rollout"] > 0
    shown = CliRunner().invoke(cli, ["tune", str(written(tmp_path, TRL)), "--dry-run", "--json"])
    assert "together with the engine" in json.loads(shown.stdout)["problem"]
    smaller, _ = phases(awake, vllm_memory=0.2)
    assert smaller.memory is not None
    assert smaller.memory.oom_probability < 0.5


def test_a_vllm_server_has_devices_of_its_own(space):
    serving = ("--use_vllm True", "--use_vllm True --vllm_mode server")
    with pytest.raises(AutoscoutError, match=r"the job has to give space.derived.server_gpus"):
        predict(space(TRL, serving), {}, None)
    stated = ('allow = ["vllm"]', 'allow = ["vllm"]\nderived = { server_gpus = "4", server_tp = "2" }')
    found, apart = phases(space(TRL, serving, stated))
    _, shared = phases(space(TRL), sleep=True)
    assert apart["update"] == pytest.approx(shared["update"], rel=0.01)
    _, fewer = phases(space(TRL, serving, (stated[0], stated[1].replace('"4"', '"2"'))))
    assert fewer["rollout"] > 1.2 * apart["rollout"], "on half as many devices"
    assert apart["weights"] > shared["weights"], "they cross the links"
    assert found.memory is not None
    assert found.memory.parts.get("engine", 0.0) == 0


def test_a_reference_model_takes_a_pass_where_beta_is_a_fraction(space):
    """--beta 0.04 was read as no whole number, and so as 0."""
    generating = TRL.replace("--use_vllm True", "")
    assert phases(space(generating))[1]["logprobs"] > 0
    assert phases(space(generating, ("--beta 0.04", "")))[1]["logprobs"] == 0


def test_generate_of_transformers_runs_to_the_longest_answer(space):
    def seconds(tokens):
        return phases(space(TRL, ("--use_vllm True", ""), ("output_len = 512", f"output_len = {tokens}")))[1]

    flat, uneven = seconds([512, 512]), seconds([1, 1, 512, 1023, 1023])
    assert flat["tail"] == 0
    assert uneven["rollout"] + uneven["tail"] == pytest.approx(2 * flat["rollout"], rel=0.2)
    assert uneven["weights"] == 0, "it has the trainer's own"


def test_rollouts_on_gpus_of_their_own_overlap_and_do_not_wait_for_the_longest(space):
    split = space(VERL, SPLIT)
    _, shared = phases(split)
    found, apart = phases(split, placement="separate_async", apart=4, tp=1)
    assert apart["tail"] == 0
    assert apart["update"] == pytest.approx(2 * shared["update"], rel=0.1), "on half of the devices"
    assert apart["rollout"] < shared["rollout"], "what the updates do not hide"
    assert found.memory is not None
    assert found.memory.parts["engine"] == 0
    line = started(
        split.job, completed(split, {"placement": "separate_async", "apart": 4}, split.reference), export_place()
    )
    wanted = "trainer.n_gpus_per_node=4 trainer.nnodes=1 trainer.v1.separate_async.parameter_sync_step=4"
    assert {*wanted.split(), "actor_rollout_ref.rollout.nnodes=1"} <= {*shlex.split(str(line.line))}


def test_all_experts_are_sent_however_many_ranks_share_them(space):
    """A rank's experts were counted as if they were all: with ep 8, an eighth of the weights was gathered and sent."""
    of_job_ = of_job(space(VERL, ('preset = "qwen2.5-7b"', 'preset = "qwen3-30b-a3b"')).job)
    asked = {**of_job_, "answers": 1024.0, "group": 4.0, "longest": 1024.0, "roll_engine": "vLLM", "roll_tp": 2.0}

    def weights(**knobs):
        columns = {**asked, "gpus": 16.0, **knobs}
        return (
            Iteration("h100")
            .predict(
                {
                    name: np.atleast_1d(value) if isinstance(value, float | str) else value
                    for name, value in columns.items()
                }
            )
            .parts["weights"][0]
        )

    apart = {"roll_gpus": 16.0, "lag": 1.0}
    size = 30.5e9 * 2
    assert weights(ep=8.0, **apart) - weights(ep=8.0) > size / 500e9, "no two nodes exchange 500 GB/s"
    assert weights(ep=8.0, **apart) == pytest.approx(weights(ep=4.0, **apart), rel=0.01)


def test_of_several_nodes_whole_ones_are_split_off(space):
    many = space(VERL, SPLIT, ("count = 8", "count = 8 }, { device = 'h100', count = 8"), ("nnodes=1", "nnodes=2"))
    with pytest.raises(AutoscoutError, match="do not leave whole nodes of 8"):
        completed(many, {"placement": "separate_async", "apart": 4}, many.reference)
    odd = space(VERL, SPLIT, ("ppo_mini_batch_size=256", "ppo_mini_batch_size=300"))
    with pytest.raises(AutoscoutError, match="parameter_sync_step times ppo_mini_batch_size 300"):
        completed(odd, {"placement": "separate_async", "apart": 4}, odd.reference)


def test_older_answers_have_to_be_allowed(tmp_path):
    said = CliRunner().invoke(cli, ["explain", str(written(tmp_path, VERL)), "placement=colocate_async"])
    assert said.exit_code != 0
    assert "older policies" in str(said.exception)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("adv_estimator=grpo", "adv_estimator=gae"), "no simulator models algorithm.adv_estimator=gae"),
        (("algorithm.adv_estimator=grpo", ""), "the line does not give algorithm.adv_estimator"),
        (("rollout.name=vllm", "rollout.name=sglang"), "no simulator models actor_rollout_ref.rollout.name=sglang"),
        (("input_len = 256\noutput_len = 512", ""), "traffic.output_len"),
    ],
)
def test_what_is_not_modelled_is_said(space, change, why):
    with pytest.raises(AutoscoutError, match=why):
        predict(space(VERL, change), {}, None)


def test_lengths_keep_their_mean_below_the_cap():
    prompt, found = lengths(Traffic(input_len=[100, 300], output_len=800), 4096, 1000)
    assert (prompt, found.max()) == (200, 4096)
    assert found.mean() == pytest.approx(800, rel=0.02)
    assert np.quantile(found, 0.99) > 5 * np.median(found)


def timed(space, parts: dict[str, float], **seconds: float) -> Measurement:
    """A run of the reference whose phases took this long; those that are not given, as long as predicted."""
    metrics = {f"{phase}_s": parts[phase] for phase in ("logprobs", "update", "weights")}
    metrics |= {"rollout_s": parts["rollout"] + parts["tail"], **seconds}
    whole = sum(metrics.values()) + 0.1
    told = {"name": "one", "context": "", "status": "ok", "configuration": space.reference}
    rate = {"samples_per_s": 256 / whole, "tokens_per_s_per_gpu": 4096 * 768 / whole / 8}
    return Measurement(**told, metrics={**metrics, **rate, "step_time_s": whole})


def test_each_phase_is_corrected_by_itself(space):
    job = space(VERL)
    _, reference = phases(job)
    _, before = phases(job, mbs=32, seqs=64)
    run = timed(
        job, reference, rollout_s=2 * (reference["rollout"] + reference["tail"]), update_s=reference["update"] / 2
    )
    simulators = Simulators(job.job, job, [run], bases=lambda: simulators_of(job.job))
    asked = simulators.columns([completed(job, {"mbs": 32, "seqs": 64}, job.reference)])
    after = simulators.ensemble.by_member(asked)["iteration"]
    assert after.parts["rollout"][0] == pytest.approx(2 * before["rollout"], rel=0.1)
    assert after.parts["update"][0] == pytest.approx(before["update"] / 2, rel=0.1)
    assert after.parts["rest"][0] == pytest.approx(0.1, rel=0.01)


SHORT = Path("fixtures/own/grpo-short.toml").read_text()


def test_cpu_ranks_run_the_frameworks_python_and_share_cores(space):
    job = space(SHORT)
    _, reference = phases(job)
    _, fewer = phases(job, mbs=8)
    _, alone = phases(job, cpu=1)
    assert reference["update"] > 2 * fewer["update"], "most of a micro batch is Python"
    assert reference["logprobs"] > 0
    assert 1.4 * reference["update"] < alone["update"] < 2 * reference["update"], "two ranks exchange metrics"
    crowded = space(SHORT.replace("gpus * threads <= 2", "gpus * threads <= 4"))
    assert phases(crowded, threads=2)[1]["rollout"] > 4 * reference["rollout"]


def test_a_knob_in_place_of_a_flag_that_is_modelled_is_priced(space):
    """Answers drawn at once, and threads: each was said to be ignored."""
    reused = space(Path("fixtures/own/grpo-reused.toml").read_text())
    found, fewer = phases(reused)
    more, drawn = phases(reused, generation=32)
    assert found.unpriced == more.unpriced == []
    assert drawn["update"] == pytest.approx(2 * fewer["update"], rel=0.1)
    assert drawn["rollout"] < 1.5 * fewer["rollout"], "twice as many answers at once"


def test_measured_iterations_correct_the_prediction(space):
    job = space(VERL)
    (model,) = simulators_of(job.job)
    columns = {**of_job(job.job), **of_configurations(job, [job.reference])}
    before = float(model.predict(columns).value[0])
    model.fit(columns, np.array([before / 2]))
    after = model.predict(columns)
    assert float(after.value[0]) == pytest.approx(before / 2, rel=0.1)
    assert float(after.error[0]) < float(Iteration("h100").predict(columns).error[0])
