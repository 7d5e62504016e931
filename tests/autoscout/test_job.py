"""Job files: strict, and every mistake is one sentence with the file, the key and the nearest known key."""

from pathlib import Path

import pytest

from autoscout.job.duration import seconds
from autoscout.job.hf_config import shape_of
from autoscout.job.lengths import of_file
from autoscout.job.load import with_budget
from autoscout.job.names import as_name, is_name
from autoscout.job.trace import read_blocks, read_trace
from autoscout.line import hostfile
from autoscout.machine.starting import job_file
from autoscout.targets.deepspeed import ds_config
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError

JOBS = sorted(Path("fixtures/jobs").glob("*.toml"))


def write(tmp_path: Path, **changes: str) -> Path:
    """smallest-cpu.toml with lines replaced: old=new by their beginning."""
    text = Path("fixtures/jobs/smallest-cpu.toml").read_text()
    for old, new in changes.items():
        line = next(line for line in text.splitlines() if line.startswith(old))
        text = text.replace(line, new)
    path = tmp_path / "job.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", JOBS, ids=lambda p: p.stem)
def test_every_job_that_we_ship_loads(path):
    job = load_job(path)
    assert job.name == path.stem
    assert job.devices in (1, 2, 4, 8, 12, 512, 1024)


@pytest.mark.parametrize(
    ("called", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H20-3e", "h20-3e"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("A100-SXM4-40GB", "a100-40g"),
        ("A100 40GB", "a100-40g"),
        ("8xH100-80GB", "h100"),
        ("NVIDIA A40", "a40"),
    ],
)
def test_a_device_by_its_drivers_name_is_the_same_job(tmp_path, called, kind):
    job, same = (
        load_job(write(tmp_path, nodes=f'nodes = [{{ device = "{name}", count = 4 }}]')) for name in (called, kind)
    )
    assert (job.cluster.nodes[0].device, job.id) == (kind, same.id)
    stated = load_job(write(tmp_path, nodes=f'nodes = [{{ device = "{called}", count = 4, memory_gib = 30 }}]'))
    assert stated.cluster.nodes[0].device == called


@pytest.mark.parametrize(
    ("called", "sentence"),
    [
        (
            "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
            "is unknown: it is a variant of 'a100-40g', but AutoScout has no record of this variant (for a",
        ),
        ("h900", "is unknown; known: a10, a100, "),
        ("hh100", "is unknown; did you mean 'h100'?"),
    ],
)
def test_a_device_that_no_record_is_of_is_not_taken_for_another_series(tmp_path, called, sentence):
    with pytest.raises(AutoscoutError, match=r"cluster\.nodes") as refused:
        load_job(write(tmp_path, nodes=f'nodes = [{{ device = "{called}", count = 4 }}]'))
    assert sentence in str(refused.value)


def test_a_preset_fills_the_model_and_can_be_overridden(tmp_path):
    path = write(tmp_path, layers='preset = "llama-3.2-3b"\nlayers = 2', heads="")
    model = load_job(path).model
    assert (model.layers, model.kv_heads, model.gated) == (2, 8, True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layers": "layerz = 4"}, "the key model.layerz is unknown; did you mean 'layers'?"),
        (
            {"task": 'task = "pretraining"'},
            "task = 'pretraining' is not one of pretrain, finetune, serve, rl; did you mean 'pretrain'?",
        ),
        ({"heads": 'heads = 4\nposition = "alibi"'}, "model.position = 'alibi' is not one of rope, learned"),
        ({"repeats": 'repeats = 2\nlauncher = "mpirun"'}, "launch.launcher = 'mpirun' is not one of auto, warm"),
        ({"task": "task = 3"}, "task: expected `str`, got `int`"),
        ({"repeats": "[space]\nlimit = { mbs = [1], tp = 2 }"}, "space.limit.tp: expected `array`, got `int`"),
        ({"name": ""}, ": the key name is missing"),
        ({"repeats": "draft.model = 'x'"}, ": the key launch.draft.method is missing"),
        ({"repeats": "environment = { A = 1 }"}, "launch.environment.A: expected `str`, got `int`"),
        (
            {"repeats": "metrics.loss = { jsn = 'loss' }"},
            "launch.metrics.loss.jsn is unknown; did you mean 'json'?",
        ),
        ({"task": 'taskk = "pretrain"'}, "the key taskk is unknown; did you mean 'task'?"),
        (
            {"nodes": 'nodes = [{ device = "cpu", coumt = 2 }]'},
            "cluster.nodes[0].coumt is unknown; did you mean 'count'?",
        ),
        ({"layers": 'layers = "four"'}, "model.layers: expected `int`, got `str`"),
        ({"hidden": ""}, "model.hidden is missing or 0; set it"),
        ({"layers": 'preset = "llama-3.2-3c"'}, "did you mean 'llama-3.2-3b'?"),
        ({"layers": 'preset = "qwen1.5-72b"'}, '(for a model without a preset, set from = "its config.json")'),
        ({"profiles": "profiles = 0"}, "budget.profiles = 0 must be more than 0"),
        ({"wall": 'wall = "soon"'}, "'soon' is not a duration"),
        ({"wall": 'wall = "0m"'}, "allows no experiment"),
        ({"minimize": 'minimize = "step_time"'}, "did you mean 'step_time_s'?"),
        ({"minimize": 'maximize = "step_time_s"'}, "better when it is lower"),
        ({"minimize": 'minimize = "tokens_per_s"'}, "better when it is higher"),
        ({"minimize": 'minimize = "cpu_s"\nmaximize = "tokens_per_s"'}, "either minimize or maximize, and not both"),
        ({"minimize": 'minimize = "cpu_s"\nconstraints = ["peak < 3"]'}, "'peak < 3' is not a constraint"),
        ({"nodes": 'nodes = [{ device = "a1000", count = 2 }]'}, "did you mean 'a100'?"),
        ({"nodes": "nodes = []"}, "cluster.nodes is empty"),
        ({"name": 'name = "../elsewhere"'}, "name = '../elsewhere' becomes the name of a folder"),
        ({"name": f'name = "{"n" * 400}"'}, "nnn…' becomes the name of a folder; use at most 170 ASCII letters"),
        ({"name": r'name = "a\n"'}, r"name = 'a\n' becomes the name of a folder"),
        ({"name": 'name = "añb"'}, "name = 'añb' becomes the name of a folder"),
        ({"heads": "heads = 4\nkv_heads = 3"}, "model.heads 4 is not a multiple of model.kv_heads 3"),
        ({"heads": "heads = 4\nffn = -7"}, "model.ffn = -7 must not be negative"),
        ({"hidden": 'hidden = 60\nposition = "rope"'}, "even head size, but here it is 15"),
        ({"timeout_s": "timeout_s = nan"}, "launch.timeout_s = nan must be a finite number"),
        ({"timeout_s": "timeout_s = inf"}, "launch.timeout_s = inf must be a finite number"),
        ({"nodes": "nodes = [{ device = 'cpu', count = 2, price_per_hour = inf }]"}, "[0].price_per_hour = inf must"),
        ({"repeats": "[[space.knob]]\nname = 'x'\nvalues = [1.0, inf]"}, "space.knob[0].values[1] = inf must be"),
        ({"minimize": 'minimize = "cpu_s"\nconstraints = ["cpu_s <= 1.2.3"]'}, "is not a constraint"),
        ({"layers": 'preset = ["x"]'}, "model.preset = ['x'] is unknown"),
        ({"heads": "heads = 4\nexperts = 4"}, "set model.bias = false"),
        ({"hidden": "hidden = 66"}, "model.hidden 66 is not a multiple of model.heads 4"),
        ({"target": 'target = "megatrom"'}, "target = 'megatrom' is unknown; did you mean 'megatron'"),
        ({"task": 'task = "serve"'}, "traffic of a serving job needs"),
        ({"repeats": 'repeats = 2\nlauncher = "replay"'}, "needs launch.recorded"),
        ({"repeats": r'model_path = "a\u0000"'}, r"launch.model_path = 'a\x00' contains a NUL character"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, changes, sentence):
    path = write(tmp_path, **changes)
    with pytest.raises(AutoscoutError) as refused:
        load_job(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("given", "named"),
    [("my model", "my-model"), ("…/模型", "model"), ("a" * 400, "a" * 170), ("-x", "x"), ("qwen:3b", "qwen-3b")],
)
def test_whatever_names_a_job_made_by_init_it_may_be_called_so(given, named):
    assert as_name(given, "model") == named
    assert is_name(named)


def test_what_is_not_toml_or_not_there(tmp_path):
    (tmp_path / "job.toml").write_text("name = ")
    with pytest.raises(AutoscoutError, match="not valid TOML"):
        load_job(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_text(f"name = {'[' * 9999}")
    with pytest.raises(AutoscoutError, match="not valid TOML: it is nested too deeply"):
        load_job(tmp_path / "job.toml")
    with pytest.raises(AutoscoutError, match="No such file"):
        load_job(tmp_path / "none.toml")


def test_a_space_that_is_wrong_names_its_job(tmp_path):
    job = load_job(write(tmp_path, repeats="[space]\nfix = { tpp = 2 }"))
    with pytest.raises(AutoscoutError, match=r"^job smallest-cpu: \[space\]: 'tpp' is unknown; did you"):
        JobSpace.of_job(job)


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("trace.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3,4\n", read_trace),
        ("trace.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]}\n', read_blocks),
        ("lengths.csv", "10\n20\n", of_file),
        ("hosts", "a slots=2\n", hostfile.read),
        (
            "config.json",
            '{"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 9}',
            lambda path: shape_of(path, "pretrain"),
        ),
        ("ds.json", '{"train_batch_size": 8}', ds_config.read),
        ("run.sh", "torchrun train.py --lr 1", lambda path: job_file([str(path)], path.parent)),
    ],
)
def test_a_byte_order_mark_before_what_a_person_gives_changes_nothing(tmp_path, name, text, read):
    (tmp_path / name).write_text(text)
    without = read(tmp_path / name)
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert repr(read(tmp_path / name)) == repr(without)


def test_a_file_that_windows_wrote(tmp_path):
    text = write(tmp_path).read_text()
    file = tmp_path / "windows.toml"
    file.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    assert load_job(file).id == load_job(write(tmp_path)).id
    for encoding, said in (("utf-16", "it is UTF-16; save this job file as UTF-8"), ("latin-1", "line 2 is not UTF-8")):
        file.write_bytes(f"# first\n# größer\n{text}".encode(encoding))
        with pytest.raises(AutoscoutError, match=f"windows.toml: {said}"):
            load_job(file)


def test_the_identity_of_a_job_is_what_it_computes(tmp_path):
    job = load_job(write(tmp_path))
    assert load_job(write(tmp_path, name='name = "other"', profiles="profiles = 99")).id == job.id
    assert load_job(write(tmp_path, layers="layers = 8")).id != job.id


def test_durations_and_budgets(tmp_path):
    assert [seconds(s) for s in ("90s", "1.5m", "2h", "")] == [90.0, 90.0, 7200.0, float("inf")]
    assert [seconds(s) for s in ("2m30s", "1h30m", "1h1m1s")] == [150.0, 5400.0, 3661.0]
    for wrong in ("30", "5s2m", "1m1m", "-1s", " 5s", "1h 5m"):
        with pytest.raises(AutoscoutError, match="is not a duration"):
            seconds(wrong)
    job = load_job(write(tmp_path))
    assert with_budget(job, 3, None).budget.profiles == 3
    with pytest.raises(AutoscoutError, match="--profiles 0"):
        with_budget(job, 0, None)


SERVE = """
name = "chat"
task = "serve"
target = "vllm"
model = { layers = 2, hidden = 64, heads = 4, vocab = 512 }
cluster.nodes = [{ device = "cpu", count = 1 }]
objective = { minimize = "tpot_p50_ms", constraints = ["ttft_p99_ms <= 500"] }
"""


@pytest.mark.parametrize(
    ("traffic", "said"),
    [
        ("{ rate = 4.0, input_len = [16, 64, 400], output_len = 32 }", ""),
        ("{ trace = 'azure.csv.gz' }", ""),
        ("{ input_len = 16, output_len = 32 }", "needs rate, concurrency or a trace"),
        ("{ rate = 4.0, concurrency = 2, input_len = 16, output_len = 32 }", "both rate"),
        ("{ rate = 4.0, input_len = [64, 16], output_len = 32 }", "quantiles"),
        ("{ rate = 4.0, output_len = 32 }", "traffic.input_len"),
    ],
)
def test_traffic_of_a_serving_job(tmp_path, traffic, said):
    path = tmp_path / "chat.toml"
    path.write_text(f"{SERVE}\ntraffic = {traffic}\n")
    if not said:
        assert load_job(path).traffic
        return
    with pytest.raises(AutoscoutError, match=said):
        load_job(path)


@pytest.mark.parametrize("spelled", ["rate = 0.0", "rate = 0", "sessions.think_s = 0.0", "mix = []"])
def test_a_default_that_is_written_down_is_the_same_job(tmp_path, spelled):
    path, ids = tmp_path / "chat.toml", []
    for more in ("", f"{spelled}\n"):
        load = f"concurrency = 2\ninput_len = 16\noutput_len = 32\nsessions.turns = 3\n{more}"
        path.write_text(f"{SERVE}\n[traffic]\n{load}")
        ids.append(load_job(path).id)
    assert ids[0] == ids[1]
