"""Shadows of a serving job: vLLM's own engine, its steps' times put in. With times that are round, what it says can be
worked out by hand."""

import importlib.util
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from serving_bench import PYTHON, needs_vllm, serving_job

from autoscout.running import processes
from autoscout.simulate.serving.operators import prefill_us
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.simulator import exactly
from autoscout.simulate.serving.step_times import PromptAttention, StepTimes
from autoscout.simulate.shadow.served import ServedTrace, ServingShadow
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import target_of
from autoscout.targets.tracing import ShadowAsked
from autoscout.targets.vllm import load_plan
from autoscout.targets.vllm import serving_shadow as shadows
from kb.records import AutoscoutError, Cluster, Configuration, Job, Node, Traffic
from kb.traces import folder
from tui.cli import cli

engine = [pytest.mark.engine, needs_vllm, pytest.mark.timeout(400)]
H100 = Cluster(nodes=[Node(device="h100", count=2)])
KNOBS: dict[str, Any] = {
    "tp": 1,
    "pp": 1,
    "dp": 2,
    "block_size": 16,
    "gpu_memory_utilization": 0.9,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "async_scheduling": False,
}
KV_BYTES = 2 * 2 * 32 * 2 * 2  # of one token: keys and values, 2 heads of 32, bf16, 2 layers


def gpu_job(**changes: Any) -> Job:
    return msgspec.structs.replace(serving_job(**changes), cluster=H100)


def constant(on_device: float, host: float) -> dict[str, Any]:
    """Every step takes so many seconds, whatever is in it."""
    nothing = dict.fromkeys(PromptAttention.__dataclass_fields__, 0.0) | {"tflops": 1.0, "gb_s": 1.0, "sms": 1.0}
    return asdict(
        StepTimes(
            linear=[on_device] * 4096,
            logits=[0.0] * 2048,
            attention=[0.0] * 2048,
            per_context=[0.0] * 2048,
            prompt=PromptAttention(**nothing),
            pp=1.0,
            host_step=host,
            host_seq=0.0,
            launches=0.0,
            graph_tokens=1e9,
            eager=False,
            eager_prompts=False,
            overlap=False,
        )
    )


def question(load: dict[str, Any], blocks: int = 1000, cache: int = 0, **knobs: Any) -> dict[str, Any]:
    job = gpu_job(**load)
    asked = shadows.question_of(job, Configuration({**KNOBS, "dp": 1, **knobs}))
    for group in asked["groups"]:
        group["arguments"] |= {"kv_cache_memory_bytes": cache * 16 * KV_BYTES} if cache else {}
        group |= {"times": constant(0.010, 0.004), "memory": (blocks + 1) * 16 * KV_BYTES}
    return asked


ONE = {"concurrency": 1, "requests": 2, "input_len": 160, "output_len": 6, "shared_prefix": 0}
MANY = {"concurrency": 8, "requests": 16, "input_len": 60, "output_len": 40, "shared_prefix": 0}
ASKED: dict[str, dict[str, Any]] = {
    "one after the other": {"load": ONE},
    "beside each other": {"load": ONE, "async_scheduling": True},
    "two stages": {"load": ONE, "pp": 2, "async_scheduling": True},
    "shared": {"load": {**MANY, "shared_prefix": 48}},
    "crowded": {"load": MANY, "blocks": 20},
    "too small": {"load": MANY, "blocks": 2},
    "refused": {"load": ONE, "tp": 3},
    "said": {"load": ONE, "cache": 31},
}


@pytest.fixture(scope="module")
def told() -> dict[str, ServedTrace]:
    """All asked of one process."""
    questions = [question(**asked) for asked in ASKED.values()]
    return dict(zip(ASKED, shadows.ask(questions, [str(PYTHON)], 300.0), strict=True))


def metrics(said: ServedTrace) -> dict[str, float]:
    assert said.verdict == "starts", said.message
    return load_plan.metrics(msgspec.convert(said.passes, list[load_plan.Pass]), gpu_job())


class TestOfAnEngine:
    pytestmark = engine

    def test_a_prompt_takes_the_steps_that_it_is_cut_into(self, told: dict[str, ServedTrace]) -> None:
        """160 tokens in steps of 64 are three, of 10 ms after 4 ms of the host's; each token after takes one."""
        found = metrics(told["one after the other"])
        assert found["ttft_mean_ms"] == pytest.approx(3 * 14)
        assert found["tpot_mean_ms"] == pytest.approx(14)
        assert told["one after the other"].concurrent_batches == 1

    def test_the_next_step_is_scheduled_while_the_device_computes(self, told: dict[str, ServedTrace]) -> None:
        found = metrics(told["beside each other"])
        assert told["beside each other"].concurrent_batches == 2
        assert found["tpot_mean_ms"] == pytest.approx(10)
        assert found["ttft_mean_ms"] == pytest.approx(4 + 3 * 10)

    def test_a_token_goes_through_all_stages_before_the_next(self, told: dict[str, ServedTrace]) -> None:
        """More batches are under way than there are stages, but a sequence's next token takes as long as one batch."""
        assert told["two stages"].concurrent_batches == 3
        assert metrics(told["two stages"])["tpot_mean_ms"] == pytest.approx(10)
        assert 0.5 < told["two stages"].engines[0].busy < 0.6

    def test_blocks_are_those_that_fit(self, told: dict[str, ServedTrace]) -> None:
        assert told["crowded"].kv_blocks == 21
        assert told["crowded"].block_size == 16
        assert told["said"].kv_blocks == 31  # a person's own --kv-cache-memory-bytes

    def test_a_full_cache_sends_requests_back(self, told: dict[str, ServedTrace]) -> None:
        assert told["shared"].engines[0].preemptions == 0
        assert told["crowded"].engines[0].preemptions > 0
        assert metrics(told["crowded"])["tpot_mean_ms"] > metrics(told["shared"])["tpot_mean_ms"]

    def test_what_prompts_share_is_computed_once(self, told: dict[str, ServedTrace]) -> None:
        """48 of 60 tokens, in whole blocks, which the warm-up left there."""
        assert told["shared"].engines[0].asked == 16 * 60
        assert told["shared"].engines[0].cached == 16 * 48
        assert told["crowded"].engines[0].cached < 16 * 16

    def test_refusals_are_in_vllms_own_words(self, told: dict[str, ServedTrace]) -> None:
        assert (told["too small"].verdict, told["too small"].phase) == ("refused", "build")
        assert "KV cache" in told["too small"].message
        assert (told["refused"].verdict, told["refused"].phase) == ("refused", "config")
        assert "must be divisible by tensor parallel size (3)" in told["refused"].message

    @pytest.mark.thorough
    def test_a_batch_takes_what_the_event_simulation_says(self) -> None:
        """Two implementations of the same scheduler on the same times of steps."""
        job = gpu_job(concurrency=16, requests=48, input_len=[20, 90, 200], output_len=[10, 30, 80], shared_prefix=0)
        configuration = Configuration({**KNOBS, "dp": 1, "max_num_seqs": 16, "max_num_batched_tokens": 256})
        asked = {**shadows.question_of(job, configuration)}
        asked["plan"]["warmup"] = 0
        said = metrics(shadows.ask([asked], [str(PYTHON)], 300.0)[0])
        sized = shadows.sized(job, configuration)[0]
        engine_alone = replace(sized, front_end_s=np.zeros(1), request_s=np.zeros(1))  # a shadow has no API server
        simulated = exactly({"traffic": job.traffic}, engine_alone, 0)
        assert said["tpot_mean_ms"] == pytest.approx(simulated["tpot_mean_ms"], rel=0.02)
        assert said["output_tokens_per_s"] == pytest.approx(simulated["output_tokens_per_s"], rel=0.02)


class TestOfAConfiguration:
    pytestmark = engine

    def test_is_known_the_second_time_and_prints_what_users_feel(self, tmp_path: Path) -> None:
        of, kb = gpu_job(**MANY), tmp_path / "kb.duckdb"
        job_file = tmp_path / "job.toml"
        job_file.write_text(_toml(of))
        configuration = Configuration(JobSpace.load(job_file).reference.knobs)
        first = CliRunner().invoke(cli, ["shadow", str(job_file), "--kb", str(kb)], standalone_mode=False)
        assert first.return_value == 0, first.output
        assert "time to first token, ms" in first.output
        assert "2 devices, 2 engines: starts;" in first.output
        job = JobSpace.load(job_file).job
        again = target_of(job).shadow(ShadowAsked(job, configuration, "a", kb, 0.0))
        assert isinstance(again, ServingShadow)
        assert again.verdict == "starts"
        assert again.cached
        said = CliRunner().invoke(cli, ["shadow", str(job_file), "--kb", str(kb), "--json"], standalone_mode=False)
        assert json.loads(said.output)["metrics"] == again.metrics
        assert again.metrics["output_tokens_per_s_per_gpu"] == again.metrics["output_tokens_per_s"] / 2

    @pytest.mark.thorough
    def test_ends_with_its_time_and_leaves_nothing_running(self, tmp_path: Path) -> None:
        of = gpu_job(**MANY)
        found = shadows.shadow(ShadowAsked(of, Configuration(KNOBS), "a", tmp_path / "kb.duckdb", 0.3))
        assert found.verdict == "timeout"
        assert not list(folder(tmp_path / "kb.duckdb").glob("*"))
        ours = processes.family(os.getpid())
        assert not [pid for pid in ours if b"shadow_serve" in Path(f"/proc/{pid}/cmdline").read_bytes()]


class TestWithoutTheEngine:
    def test_attention_of_prompts_costs_what_the_arrays_say(self) -> None:
        a100 = device("a100")
        rng = np.random.default_rng(0)
        fields = {name: getattr(a100.prefill, name) for name in ("overhead_us", "tflops", "short", "occupancy", "gb_s")}
        one = PromptAttention(**fields, sms=a100.sms, layers=1.0, heads=32.0, head_dim=128.0, kv_bytes=4096.0)
        for _ in range(20):
            seqs, tokens = int(rng.integers(1, 9)), int(rng.integers(9, 4000))
            pairs = float(tokens * rng.integers(1, 3000))
            wanted = prefill_us(a100.prefill, a100.sms, seqs, tokens, pairs, 32.0, 128.0, 4096.0)
            assert one.seconds(seqs, tokens, pairs) == pytest.approx(float(wanted) * 1e-6, rel=1e-12)
        assert one.seconds(0, 0, 0.0) == 0

    def test_the_clock_reaches_every_moment(self) -> None:
        """A request that comes in the last bit of a float was waited for without end."""
        path = shadows.SCRIPT.with_name("virtual_clock.py")
        spec = importlib.util.spec_from_file_location("virtual_clock", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        rng = np.random.default_rng(0)
        for _ in range(500):
            clock = module.VirtualClock()
            clock.begin(float(rng.uniform(0, 100)))
            clock.skip(float(rng.uniform(0, 1e-3)))
            moment, waits = clock.now() + float(rng.uniform(0, 10)), 0
            while clock.now() < moment:
                clock.skip(moment - clock.now())
                waits += 1
            assert waits < 9

    @pytest.mark.parametrize(
        ("knobs", "words"),
        [
            ({"spec": "ngram"}, "spec = ngram: a shadow cannot predict how many guessed tokens are accepted"),
            ({"kv_offload": 16.0}, "kv_offload = 16.0: a shadow cannot predict transfers between"),
        ],
    )
    def test_what_the_tables_do_not_know(self, knobs: dict[str, Any], words: str) -> None:
        with pytest.raises(AutoscoutError, match=words):
            shadows.question_of(gpu_job(), Configuration({**KNOBS, **knobs}))

    def test_a_device_without_constants(self) -> None:
        with pytest.raises(AutoscoutError, match="has no constants for 'cpu'; `autoscout calibrate`"):
            shadows.question_of(serving_job(), Configuration(KNOBS))

    def test_a_configuration_without_a_device(self) -> None:
        mixed = Cluster(nodes=[Node(device="h100", count=2), Node(device="a100", count=2)])
        of = msgspec.structs.replace(gpu_job(), cluster=mixed)
        with pytest.raises(AutoscoutError, match="does not use a whole node"):
            shadows.question_of(of, Configuration({**KNOBS, "h100": 0, "a100": 1}))

    def test_an_interpreter_without_vllm(self) -> None:
        of = gpu_job(python="/usr/bin/python3")
        if not Path("/usr/bin/python3").exists():
            pytest.skip("no /usr/bin/python3")
        with pytest.raises(AutoscoutError, match="has no vLLM, but a shadow run"):
            shadows.shadow(ShadowAsked(of, Configuration(KNOBS), "a", None, 1.0))

    def test_ranks_and_parts_are_of_training(self) -> None:
        of = gpu_job()
        with pytest.raises(AutoscoutError, match="omit --rank and --parts"):
            target_of(of).shadow(ShadowAsked(of, Configuration(KNOBS), "a", None, 1.0, parts=True))


def _toml(job: Job) -> str:
    m, t = job.model, job.traffic
    assert isinstance(t, Traffic)
    lines = [f'name = "{job.name}"', 'task = "serve"', 'target = "vllm"', "[model]"]
    lines += [f"{name} = {getattr(m, name)}" for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")]
    lines += ["gated = true", 'norm = "rmsnorm"', "bias = false", "[traffic]"]
    lines += [f"{name} = {getattr(t, name)}" for name in ("concurrency", "requests", "input_len", "output_len")]
    lines += ["[cluster]", 'nodes = [{ device = "h100", count = 2 }]', "[objective]"]
    lines += ['maximize = "output_tokens_per_s"', "[launch]", f'python = "{PYTHON}"']
    return "\n".join(lines) + "\n"
