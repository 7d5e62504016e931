"""Shadows of a person's own training script: unchanged, without its GPUs and without its other ranks."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from autoscout.running.shadow_process import shadows_of
from autoscout.simulate.shadow.traced import KINDS, Rank
from autoscout.simulate.shadow.verdict import peak
from autoscout.targets.command import own_shadow as shadows
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from autoscout.targets.tracing import ShadowAsked
from kb.records import AutoscoutError, Configuration, Job
from tui.cli import cli

engine = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
    pytest.mark.timeout(300),
]
TRANSFORMERS = Path(".venv-vllm/bin/python")
WORLD, WIDTH, LAYERS = 4, 256, 3
N = WIDTH * WIDTH * LAYERS  # parameters
HEAD = f"""
import os, sys, torch, torch.distributed as dist
from torch import nn
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
model = nn.Sequential(*(nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS}))).to(device)
"""
TAIL = f"""
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(9):
    loss = model(torch.randn(32, {WIDTH}, device=device)).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {{loss.item():.3f}}", torch.cuda.max_memory_allocated())
dist.destroy_process_group()
os._exit(0)
"""
USUAL = f"""
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index], output_device=device.index)
data = TensorDataset(torch.randn(512, {WIDTH}), torch.randint(0, 10, (512,)))
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data), num_workers=2, pin_memory=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule, scaler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10), torch.amp.GradScaler("cuda")
for epoch in range(9):
    loader.sampler.set_epoch(epoch)
    torch.save(model.state_dict(), "checkpoint.pt")
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.cuda(non_blocking=True)
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
"""
CUBED = (
    HEAD
    + """
from torch.utils.checkpoint import checkpoint


class Cubed(nn.Module):
    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return {}


model.append(Cubed())
"""
    + TAIL.replace("torch.randn(32,", "torch.randn(4096,").replace("{", "{{").replace("}", "}}")
)
SCRIPTS = {
    "ddp": HEAD + "model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])\n" + TAIL,
    "fsdp2": HEAD + "from torch.distributed.fsdp import fully_shard\n[fully_shard(m) for m in model]\n"
    "fully_shard(model)\n" + TAIL,
    "plain": HEAD + TAIL,
    "usual": HEAD + USUAL,
    "accelerator": HEAD.replace(
        "torch.cuda.set_device(device)", "torch.accelerator.set_device_index(device.index)"
    ).replace('torch.device("cuda", ', "torch.device(torch.accelerator.current_accelerator().type, ")
    + TAIL.replace("torch.cuda.max", "torch.accelerator.max"),
    "sixteen bits": HEAD
    + "model[1].weight = model[0].weight\nmodel = model.to(torch.bfloat16)\n"
    + TAIL.replace("device=device", "device=device, dtype=torch.bfloat16"),
    "attention": HEAD
    + f"""
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear({WIDTH}, {WIDTH} + {WIDTH} // 2, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).split([{WIDTH}, {WIDTH} // 4, {WIDTH} // 4], -1)
        q, k, v = (t.unflatten(-1, (-1, 16)).transpose(1, 2) for t in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).flatten(2)


model = Attention()
"""
    + TAIL.replace("torch.randn(32,", "torch.randn(4, 2048,"),
    "autocast": CUBED.format("torch.pow(x.bfloat16(), 3.0)"),
    "recomputed": CUBED.format("checkpoint(lambda y: torch.pow(y.bfloat16(), 3.0), x, use_reentrant=False)"),
    "mistaken": HEAD + "assert dist.get_world_size() == 7, 'made for seven ranks'\n",
    "pointers": HEAD
    + "assert len({p.data_ptr() for p in model.parameters()}) == 3, 'one'\n"
    + "assert model[0].weight.data_ptr() == model[0].weight.view(-1).data_ptr(), 'other'\n"
    + TAIL,
    "deepspeed": HEAD + "sys.modules['deepspeed'] = torch\nassert model[0].weight.is_cuda, 'not on a GPU'\n",
    "short": HEAD + TAIL.replace("range(9)", "range(1)"),
    "by value": HEAD
    + TAIL.replace("    loss.backward()", "    w = model[0].weight\n    (loss + w[w > 0].sum()).backward()"),
}


def question(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    path = folder / f"{name.replace(' ', '_')}.py"
    path.write_text(SCRIPTS[name])
    words = ["torchrun", "--nproc-per-node", str(WORLD), path.name]
    asked = {"words": words, "cwd": str(folder), "rank": 1, "world": WORLD, "a_node": WORLD, "gpu": True}
    return {**asked, **changes}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rank]:
    """All asked of one process."""
    folder = tmp_path_factory.mktemp("scripts")
    asked = [question(folder, name) for name in SCRIPTS]
    answers = shadows_of(shadows.SCRIPT, asked, [sys.executable], 250.0, os.environ)
    assert all(answers)
    each = [msgspec.convert({**answer, "rank": 1}, Rank) for answer in answers if answer]
    return dict(zip(SCRIPTS, each, strict=True))


class TestOfAScript:
    pytestmark = engine

    def test_ddp_keeps_a_copy_of_everything(self, told: dict[str, Rank]) -> None:
        """Buckets beside the gradients, which zero_grad has not dropped yet."""
        rank = told["ddp"]
        assert rank.verdict == "starts", rank.message
        assert rank.parameters == N
        assert rank.left["weights"] == 4 * N
        assert rank.left["gradients"] == 8 * N
        assert rank.left["optimizer"] == pytest.approx(8 * N, rel=0.02)
        assert set(rank.at_peak) == set(KINDS)
        assert sum(rank.at_peak.values()) == rank.peak == peak(rank)

    def test_what_ddp_sends_is_the_gradients(self, told: dict[str, Rank]) -> None:
        sent = [c for c in told["ddp"].collectives if c[1] == "allreduce" and c[5] == "backward"]
        assert sum(count * size for count, _, _, _, size, _ in sent) == 4 * N
        assert {c[3] for c in sent} == {WORLD}

    def test_fsdp_keeps_its_share(self, told: dict[str, Rank]) -> None:
        rank = told["fsdp2"]
        assert rank.verdict == "starts", rank.message
        assert rank.left["weights"] == pytest.approx(4 * N / WORLD, rel=0.02)
        assert rank.left["optimizer"] == pytest.approx(8 * N / WORLD, rel=0.02)
        assert rank.peak < told["ddp"].peak
        names = {c[1] for c in rank.collectives}
        assert {"allgather_base", "reduce_scatter_base"} <= names

    def test_loaders_schedules_and_scalers_are_as_usual(self, told: dict[str, Rank]) -> None:
        """Batches come from processes of their own, and steps are left out where a gradient is no number."""
        rank = told["usual"]
        assert rank.verdict == "starts", rank.message
        assert rank.left["optimizer"] == pytest.approx(4 * N, rel=0.02)

    def test_products_are_those_of_the_model(self, told: dict[str, Rank]) -> None:
        """Of each layer one forward and two backward, but for the input, which wants no gradient."""
        for name in ("ddp", "fsdp2"):
            assert sum(k[0] for k in told[name].kernels if k[1] == "matmul") == 3 * LAYERS - 1

    def test_devices_by_their_newer_names(self, told: dict[str, Rank]) -> None:
        assert told["accelerator"].verdict == "starts", told["accelerator"].message
        assert told["accelerator"].at_peak == told["plain"].at_peak

    def test_a_model_is_converted_with_its_tied_weights(self, told: dict[str, Rank]) -> None:
        rank = told["sixteen bits"]
        assert rank.verdict == "starts", rank.message
        assert rank.left["weights"] == 2 * (N - WIDTH * WIDTH)

    def test_attention_is_that_of_a_gpu(self, told: dict[str, Rank]) -> None:
        """Neither scores for dropout nor keys repeated for the heads that share them: what is made is smaller."""
        rank = told["attention"]
        assert rank.verdict == "starts", rank.message
        tokens = 4 * 2048
        made = 4 * tokens * (WIDTH + WIDTH * 3 // 2 + WIDTH)  # the input, queries with keys and values, the output
        assert rank.peak < 3.5 * made
        assert rank.peak < 4 * tokens * 2048 * WIDTH // 16  # of all scores

    def test_autocast_is_that_of_a_gpu(self, told: dict[str, Rank]) -> None:
        """A power is computed of a copy in fp32, also where a layer is computed again."""
        assert told["recomputed"].verdict == "starts", told["recomputed"].message
        rank = told["autocast"]
        made = [size for tag, kind, size in rank.largest if tag.startswith("aten._to_copy")]
        assert sum(made) >= 4096 * WIDTH * 4

    def test_a_refusal_is_in_the_scripts_own_words(self, told: dict[str, Rank]) -> None:
        rank = told["mistaken"]
        assert (rank.verdict, rank.type, rank.phase) == ("refused", "AssertionError", "build")
        assert "made for seven ranks" in rank.message

    def test_parameters_lie_apart(self, told: dict[str, Rank]) -> None:
        """Under Accelerate's FSDP2 all but one of a model's were left out of the optimizer."""
        assert told["pointers"].verdict == "starts", told["pointers"].message

    def test_what_an_engine_of_real_devices_says_is_no_refusal(self, told: dict[str, Rank]) -> None:
        assert told["deepspeed"].verdict == "untraceable"
        assert "not on a GPU" in told["deepspeed"].message

    def test_a_script_that_does_not_step(self, told: dict[str, Rank]) -> None:
        assert told["short"].verdict == "refused"
        assert "ended after 1 steps of an optimizer; a shadow needs 2" in told["short"].message

    def test_shapes_that_follow_from_values(self, told: dict[str, Rank]) -> None:
        rank = told["by value"]
        assert rank.verdict == "untraceable"
        assert "nonzero" in rank.message

    @pytest.mark.thorough
    def test_is_known_the_second_time(self, tmp_path: Path) -> None:
        job_file = written(tmp_path, "torchrun --nproc-per-node {gpus} ddp.py")
        (tmp_path / "ddp.py").write_text(SCRIPTS["ddp"])
        kb = str(tmp_path / "kb.duckdb")
        first = CliRunner().invoke(cli, ["shadow", str(job_file), "--kb", kb], standalone_mode=False)
        assert first.return_value == 0, first.output
        assert "on 4 ranks: starts; rank 0 has the highest peak" in first.output
        job = load_job(job_file)
        found = target_of(job).shadow(ShadowAsked(job, default(job), "a", Path(kb), 0.0))
        assert found.cached == 1
        (tmp_path / "ddp.py").write_text(SCRIPTS["ddp"] + "\n# edited\n")
        with pytest.raises(AutoscoutError, match="has not been traced yet"):
            target_of(job).shadow(ShadowAsked(job, default(job), "a", Path(kb), 0.0))


HUGGING_FACE = """
import torch, torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
dist.init_process_group("nccl")
shape = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
model = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=256, use_cache=False)).cuda()
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    tokens = torch.randint(256, (2, 32), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
"""


@pytest.mark.engine
@pytest.mark.thorough
@pytest.mark.skipif(not TRANSFORMERS.exists(), reason="transformers is where vLLM is (make .venv-vllm/ready)")
def test_a_model_of_hugging_face_does_what_it_does_without_fake_tensors(tmp_path: Path) -> None:
    """For fake tensors it would make masks, and with them copies of keys and values for each head."""
    (tmp_path / "llama.py").write_text(HUGGING_FACE)
    asked = {"words": ["torchrun", "llama.py"], "cwd": str(tmp_path), "rank": 0, "world": WORLD, "a_node": WORLD}
    answer = shadows_of(shadows.SCRIPT, [{**asked, "gpu": True}], [str(TRANSFORMERS)], 250.0, os.environ)[0]
    assert answer
    assert answer["verdict"] == "starts", answer["message"]
    names = {kernel[1] for kernel in answer["kernels"]}
    assert any("scaled_dot_product" in name for name in names)
    assert not [name for name in names if name.startswith(("bitwise_and", "le.", "cumsum"))]


class TestWithoutTorch:
    def test_what_is_no_python_script(self, tmp_path: Path) -> None:
        job = load_job(written(tmp_path, "deepspeed train.py"))
        with pytest.raises(AutoscoutError, match="deepspeed cannot be run as a shadow: only `python"):
            shadows.shadow(ShadowAsked(job, default(job), "a", None))

    def test_a_rank_that_does_not_exist(self, tmp_path: Path) -> None:
        job = load_job(written(tmp_path, "torchrun train.py"))
        with pytest.raises(AutoscoutError, match="--rank 9: the configuration has the ranks 0 to 3"):
            shadows.shadow(ShadowAsked(job, default(job), "a", None, ranks=[9]))

    def test_parts_are_megatrons(self, tmp_path: Path) -> None:
        job = load_job(written(tmp_path, "torchrun train.py"))
        with pytest.raises(AutoscoutError, match="omit --parts"):
            target_of(job).shadow(ShadowAsked(job, default(job), "a", None, 1.0, parts=True))


def default(job: Job) -> Configuration:
    return JobSpace.of_job(job).reference


def written(folder: Path, command: str) -> Path:
    path = folder / "job.toml"
    text = [
        f'name = "own"\ntarget = "command"\n[cluster]\nnodes = [{{ device = "h100", count = {WORLD} }}]',
        '[objective]\nminimize = "step_time_s"',
        f'[launch]\npython = "{sys.executable}"\npath = "{folder}"\ncommand = "{command}"',
        "[launch.metrics]\nstep_time_ms = 'took ([\\d.]+)'\nloss = 'loss ([\\d.]+)'",
        '[space]\nknob = [{ name = "mbs", values = [1, 2], sets = "--micro-batch" }]',
    ]
    path.write_text("\n".join(text) + "\n")
    return path


@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_grouped_products_of_experts_are_products():
    """They were bytes that are moved, as if each number were read once (findings/torch-flops-of-grouped-experts.sh)."""
    program = """
import subprocess
import sys
import torch
from watch import watch
watch.record()
tokens, experts = (torch.randn(*shape, requires_grad=True) for shape in ((128, 64), (8, 64, 32)))
ends = torch.arange(16, 129, 16, dtype=torch.int32)
with watch:
    torch.nn.functional.grouped_mm(tokens, experts, offs=ends).square().sum().backward()
    torch.addmm(torch.zeros(128, 16), torch.zeros(128, 64), torch.zeros(64, 16))
print(sorted(size for name, _, size in watch.kernels if name == "matmul"))
"""
    folder = Path("autoscout/targets/megatron/worker/shadow").absolute()
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[(64, 128, 32), (128, 32, 64), (128, 64, 16), (128, 64, 32)]", done.stderr
