"""Device records: what they inherit, what is refused in one, that a name decides nothing, and that a new GPU is one
file."""

import re
import tomllib
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from record_files import own_records, shipped_records

from autoscout.job.device_names import capability_of, device_meant, is_called, is_cpu, stem_of
from autoscout.job.device_records import folder, records
from autoscout.running.cluster.devices import resource
from autoscout.simulate.hardware.device import all_hardware, hardware
from autoscout.simulate.joules import TrainingEnergy
from autoscout.simulate.learned.linear import table_2
from autoscout.simulate.member import Columns, Member
from autoscout.simulate.serving.serving_device import device, has_constants
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Cluster, Job, LaunchSettings, Model, Node, Objective, Traffic
from tui.cli import cli

SERVED: Columns = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256, "input_len": 500,
    "output_len": 100, "batch": 32, "tp": np.array([1, 2, 4, 8] * 4), "experts": np.array([0, 0, 8, 8] * 4),
    "quantization": np.repeat(["none", "fp8", "int8", "mxfp4"], 4), "windowed_layers": np.array([0, 16] * 8),
    "window": 128, "framework": np.array(["vLLM", "TensorRT-LLM", "SGLang", "vLLM"] * 4),
}  # fmt: skip
TRAINED: Columns = {
    "layers": 32, "hidden": 4096, "heads": 32, "seq_len": 4096, "global_batch": 64, "gpus": 8,
    "tp": np.array([1, 2, 4, 8]), "dtype": np.array(["bf16", "bf16", "fp32", "bf16"]), "power_cap": 80,
}  # fmt: skip


def said(member: Member, columns: Columns) -> list[str]:
    """Every digit of values and errors."""
    if member.applies(columns):
        return []
    found = member.predict(columns)
    return [*map(repr, found.value.tolist()), *map(repr, found.error.tolist())]


def everything(gpu: str) -> list[Any]:
    """What each simulator predicts of rows on a kind of device."""
    served, trained = {**SERVED, "gpu": gpu}, {**TRAINED, "gpu": gpu}
    serving = [ServingSimulator(metric) for metric in ("output_tokens_per_s", "peak_memory_gib")]
    found = [said(member, served) for member in serving] if has_constants(gpu) else []
    return [*found, *(said(member, trained) for member in (Training(), Memory(), TrainingEnergy()))]


def test_a_record_under_a_drivers_name_predicts_what_the_shipped_one_does(tmp_path, monkeypatch):
    """Lists of names took an H100 under the name that `calibrate` gives it for a device without FP8: 2,086 tokens a
    second for 3,435."""
    text = (folder() / "h100.toml").read_text()
    unnamed = re.sub(r"^(names|series|name) = .*\n", "", text, flags=re.MULTILINE)
    of_driver = 'name = "NVIDIA H100 80GB HBM3"\n'
    shipped = everything("h100")
    with own_records(tmp_path, monkeypatch, **{"nvidia-h100-80gb-hbm3": of_driver + unnamed}):
        assert everything("nvidia-h100-80gb-hbm3") == shipped
        assert device_meant("NVIDIA H100 80GB HBM3", 79.1) == "nvidia-h100-80gb-hbm3"
        assert is_called("h100", "NVIDIA H100 80GB HBM3"), "jobs that say h100 still run there"
    rates = ServingSimulator("output_tokens_per_s").predict({**SERVED, "gpu": "h100"}).value
    assert rates[4] > 1.2 * rates[0], "FP8"


def test_no_prediction_depends_on_a_name(tmp_path, monkeypatch):
    """With every record under another name, each predicts what it did, to the last digit."""
    before = {stem: everything(stem) for stem in records()}
    mixed = {**TRAINED, "a100": np.array([8, 0, 8, 8]), "a40": np.array([0, 8, 8, 4])}
    mixed.pop("gpus")
    seconds, values = said(Training(), mixed), np.array([1.0, 2.0, 1.5, 1.7] * 4)
    many = {name: np.tile(column, 4) if isinstance(column, np.ndarray) else column for name, column in mixed.items()}
    lines = table_2()
    for line in lines:
        line.fit(many, values)
    learned = [said(line, many) for line in lines]
    others = {stem: f"x-{stem[::-1]}" for stem in records()}
    for stem, other in others.items():
        text = (folder() / f"{stem}.toml").read_text()
        text = re.sub(r'^(like|links) = "(.*)"', lambda m: f'{m[1]} = "{others[m[2]]}"', text, flags=re.MULTILINE)
        text = re.sub(r"^(names|series) = .*\n", "", text, flags=re.MULTILINE)
        (tmp_path / f"{other}.toml").write_text(re.sub(r'^name = "', 'name = "another ', text, flags=re.MULTILINE))
    with shipped_records(tmp_path, monkeypatch):
        assert not hardware("h100")
        assert {stem: everything(other) for stem, other in others.items()} == before
        renamed = {others.get(name, name): column for name, column in mixed.items()}
        assert said(Training(), renamed) == seconds
        many = {others.get(name, name): column for name, column in many.items()}
        again = table_2()
        for line in again:
            line.fit(many, values)
        assert [said(line, many) for line in again] == learned


def test_every_figure_that_a_record_states_has_a_source():
    """`source` is that of the data sheet's figures and of the network; [sources] says where the others are from."""
    for path in sorted(folder().glob("*.toml")):
        record = tomllib.loads(path.read_text())
        serving = record.get("serving", {})
        stated = {key for key, value in record.items() if isinstance(value, dict)} - OF_DATA_SHEETS
        stated |= {f"serving.{key}" for key in serving} - {"serving.like", "serving.kernels"}
        stated |= {f"kernels.{key}" for key in serving.get("kernels", {})}
        if path.stem != "cpu":  # fitted end to end, as its `source` says of all of it
            assert stated <= record.get("sources", {}).keys(), path.name
        assert record["source"]


OF_DATA_SHEETS = {"peak_tflops", "network", "serving", "sources"}
HEAD = 'name = "mine"\nsource = "me"\nlike = "h100"\n'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"mine": 'name = "mine"\nvendor = "nvidia"\n'}, "it lacks source, memory_gib"),
        (
            {"mine": 'name = "mine"\nsource = "me"\n'},
            "or set `like` to a similar device (`autoscout calibrate` rewrites this file)",
        ),
        ({"mine": HEAD + "capability = 8.0\n"}, "capability = 8 has no fp8, but peak_tflops gives fp8 = 1978"),
        ({"mine": HEAD + "peak_tflops = { bf16 = 900, fp8 = 500 }\n"}, "fp8 = 500 is slower than bf16 = 900"),
        ({"mine": HEAD + "peak_tflops = { fp8 = 500 }\n"}, "peak_tflops has no bf16; add it"),
        ({"mine": HEAD + "memory_gib = 0\n"}, "memory_gib = 0 must be more than 0"),
        ({"mine": HEAD + "storage_gb_s = 0\n"}, "storage_gb_s = 0 must be more than 0"),
        ({"mine": HEAD + "cores = 4\n"}, "vendor = 'nvidia' is for GPUs, but cores = 4 is for CPUs"),
        ({"mine": HEAD + "per_tray = 3\n"}, "per_node = 8 is not a multiple of per_tray = 3"),
        ({"mine": HEAD + "memory_gb = 80\n"}, "memory_gb"),
        ({"mine": HEAD + 'memory_gib = "80"\n'}, "memory_gib"),
        ({"mine": HEAD + "[gemm]\nspeed = 1\n"}, "speed"),
        ({"mine": HEAD + "[island]\nranks = [2, 4]\n"}, "island.ranks lists 2 group sizes, but its curves have 3"),
        ({"mine": HEAD + "[serving.gem]\ntail = 1\n"}, "serving.gem is unknown; did you mean 'gemm'?"),
        ({"mine": HEAD + "[serving.kernels]\nsink = 1\n"}, "sink"),
        ({"mine": HEAD + "[serving.decode]\ngb_s = 1\n"}, "serving: Object missing required field"),
        ({"mine": 'like = "mine"\n'}, "its `like` refers back to itself: mine → mine"),
        ({"mine": "like = 1\n"}, "like = 1 must be the name of a device record"),
        ({"mine": HEAD + "gemm = 1\n"}, "gemm must be a table"),
        ({"mine": HEAD + "serving = { gemm = 1 }\n"}, "serving.gemm must be a table"),
        ({"mine": HEAD + 'serving = { gemm = { gb_s = "" } }\n'}, "serving.gemm.gb_s = '' must be a number"),
        ({"mine": HEAD + "island = { times = -1 }\n"}, "island.times = -1 must be a number, and more than 0"),
        ({"mine": 'like = "h1000"\n'}, "like = 'h1000' is unknown; did you mean 'h100'?"),
        ({"a": 'like = "b"\n', "b": 'like = "a"\n'}, "its `like` refers back to itself: a → b → a"),
        ({"a": HEAD + 'links = "b"\n', "b": HEAD + 'serving = { like = "a" }\n'}, "refers back to itself: a → b → a"),
        ({"a": HEAD, "b": HEAD}, "'mine' is also a name in"),
        ({"a": HEAD, "b": HEAD.replace("mine", "A")}, "'A' is also a name in"),
        ({"mine": "like = \n"}, "Invalid value"),
    ],
)
def test_what_is_wrong_in_a_record_is_said_in_a_sentence(tmp_path, monkeypatch, content, words):
    def read() -> None:
        for stem in all_hardware():
            assert stem_of(stem)
            if has_constants(stem):
                device(stem)

    with own_records(tmp_path, monkeypatch, **content), pytest.raises(AutoscoutError) as refused:
        read()
    assert refused.value.exit_code == 2
    assert words in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "hardware"))
    assert "\n" not in str(refused.value)


def test_a_wrong_record_ends_a_verb_with_exit_code_2(tmp_path, monkeypatch):
    with own_records(tmp_path, monkeypatch, mine=HEAD + "memory_gib = -1\n"):
        done = CliRunner().invoke(cli, ["check", "fixtures/jobs/llama-3.2-3b.toml"])
    assert isinstance(done.exception, AutoscoutError)
    assert done.exception.exit_code == 2
    assert re.fullmatch(r"\S+mine.toml: memory_gib = -1 must be more than 0", str(done.exception))


def test_a_persons_record_is_like_the_shipped_one_of_its_own_name(tmp_path, monkeypatch):
    """What this machine's H100 does says nothing of others that are like an H100."""
    mine = 'name = "mine"\nsource = "me"\nlike = "h100"\nmemory_gb_s = 3000\n'
    others = [everything("h200"), everything("b200")]
    processor = 'name = "my processor"\nsource = "me"\nlike = "cpu"\nmemory_gb_s = 3000\n'
    with own_records(tmp_path, monkeypatch, h100=mine, cpu=processor):
        assert [all_hardware()[kind].memory_gb_s for kind in ("cpu", "cpu-slow")] == [3000, 10]
        assert [everything("h200"), everything("b200")] == others
        found = all_hardware()["h100"]
        assert (found.memory_gb_s, found.memory_gib) == (3000, 79.1)
        assert hardware("NVIDIA H100 80GB HBM3") is found
        assert device("h100").gemm.gb_s < 3000


def test_an_unknown_gpu_has_one_capability_and_is_of_whom_its_name_says(tmp_path):
    """It had 0.0, 8.0 or 9.0, by the file that asked."""

    def job(kind: str) -> Job:
        cluster = Cluster(nodes=[Node(device=kind, count=8, memory_gib=64.0)])
        model = Model(layers=4, hidden=512, heads=8, vocab=4096)
        return Job(
            name="j",
            target="megatron",
            model=model,
            cluster=cluster,
            traffic=Traffic(512, 64),
            objective=Objective(minimize="step_time_s"),
            launch=LaunchSettings(transformer_engine=True),
        )

    assert capability_of("nobodys") == 0.0
    assert JobSpace.of_job(job("nobodys")).attributes["capability"] == 0.0
    assert target_of(job("nobodys")).notes_on_job(job("nobodys")) == target_of(job("h20")).notes_on_job(job("h20"))
    assert [resource(job(kind)) for kind in ("mi300x", "mi250x", "h20", "nobodys")] == [
        *["amd.com/gpu"] * 2, *["nvidia.com/gpu"] * 2,
    ]  # fmt: skip
    assert is_cpu("cpu-old")
    assert not is_cpu("nobodys")
