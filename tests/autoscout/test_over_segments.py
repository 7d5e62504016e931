"""`traffic.segments`: one configuration for several loads, checked against every configuration of a small space."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import verbs

from autoscout.job.segments import segment_jobs
from autoscout.job.trace import with_trace_id
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.over_segments import SegmentsRanking, over_segments
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError, Job, Traffic

JOB = """
name = "assistant"
task = "serve"
target = "vllm"

[model]
preset = "llama-3.1-8b"

[traffic]
concurrency = 64
segments = ["summaries.csv", "stories.csv", "chat.jsonl"]

[cluster]
nodes = [{ device = "h100", count = 4 }]

[objective]
minimize = "e2el_p50_ms"

[space]
fix = { pp = 1, ep = false, quantization = "none", kv_cache_dtype = "auto", gpu_memory_utilization = 0.9, eager = false,
  block_size = 16, prefix_caching = true, spec = "none", async_scheduling = true, graph_size = 512, max_num_seqs = 64,
  cudagraph_mode = "FULL_AND_PIECEWISE", chunked_prefill = true, long_prefill = 0, kv_offload = 0.0 }
limit = { max_num_batched_tokens = [512, 2048, 8192] }
""".replace(",\n  block", ", block").replace(",\n  cuda", ", cuda")
SEGMENTS = {"summaries.csv": (6000, 20), "stories.csv": (100, 800), "chat.jsonl": (2000, 300)}
MINIMIZE = 'minimize = "e2el_p50_ms"'


def csv(*requests: tuple[int, int]) -> str:
    lines = [f"{second},{asked},{answered}\n" for second, (asked, answered) in enumerate(requests)]
    return "".join(["arrival_s,input_tokens,output_tokens\n", *lines])


def hashed(*requests: tuple[int, int]) -> str:
    rows = [{"timestamp": 1000 * i, "input_length": a, "output_length": b} for i, (a, b) in enumerate(requests)]
    return "".join(json.dumps({**row, "hash_ids": []}) + "\n" for row in rows)


def written(folder: Path, *changes: tuple[str, str]) -> Path:
    """A job file beside its traces, after every change (what must be there, what comes in its place)."""
    for name, (asked, answered) in SEGMENTS.items():
        requests = [(asked + 10 * i, answered) for i in range(40)]
        (folder / name).write_text((csv if name.endswith(".csv") else hashed)(*requests))
    text = JOB
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (folder / "job.toml").write_text(text)
    return folder / "job.toml"


def loaded(folder: Path, *changes: tuple[str, str]) -> Job:
    return load_job(written(folder, *changes), segmented=True)


def prices(job: Job) -> tuple[list[str], np.ndarray]:
    """The names of all configurations, and the metric of each one in each segment."""
    space = JobSpace.of_job(job)
    every, loads = list(space.configurations()), segment_jobs(job).values()
    found = [[predict(space, each.knobs, None, load).value for load in loads] for each in every]
    return [space.name(each) for each in every], np.array(found)


def asked(job: Job, count: int = 3) -> SegmentsRanking:
    return over_segments(JobSpace.of_job(job), None, count)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("segments")


@pytest.fixture(scope="module")
def e2el(folder: Path) -> tuple[list[str], np.ndarray]:
    return prices(loaded(folder))


@pytest.fixture(scope="module")
def gaps(folder: Path) -> np.ndarray:
    return prices(loaded(folder, (MINIMIZE, 'minimize = "itl_p99_ms"')))[1]


@pytest.fixture(scope="module")
def ranking(folder: Path) -> SegmentsRanking:
    return asked(loaded(folder))


def test_the_compromise_is_the_best_of_all_configurations_and_of_no_segment(ranking, e2el):
    names, values = e2el
    quotients = values / values.min(axis=0)
    best = int(quotients.mean(axis=1).argmin())
    assert best not in values.argmin(axis=0)
    first = ranking.rows[0]
    assert first.name == names[best]
    assert list(first.values) == list(ranking.best) == list(SEGMENTS)
    assert list(first.values.values()) == pytest.approx(values[best], rel=1e-6)
    assert list(ranking.best.values()) == pytest.approx(values.min(axis=0), rel=1e-6)
    assert first.mean == pytest.approx(quotients[best].mean())
    assert first.worst == pytest.approx(quotients[best].max())
    assert first.worst_in == list(SEGMENTS)[int(quotients[best].argmax())]
    assert [row.mean for row in ranking.rows] == sorted(row.mean for row in ranking.rows)


def test_the_slower_segment_does_not_drown_the_other(folder, e2el):
    """Stories take more milliseconds than summaries, so that a mean of milliseconds would be mostly theirs."""
    names, values = e2el[0], e2el[1][:, :2]
    best = int((values / values.min(axis=0)).mean(axis=1).argmin())
    assert best != values.mean(axis=1).argmin()
    assert asked(loaded(folder, (', "chat.jsonl"]', "]"))).rows[0].name == names[best]


def test_more_is_better_where_the_job_maximizes(folder):
    job = loaded(folder, (MINIMIZE, 'maximize = "output_tokens_per_s"'))
    names, values = prices(job)
    quotients = values / values.max(axis=0)
    first = asked(job).rows[0]
    assert first.name == names[int(quotients.mean(axis=1).argmax())]
    assert first.mean == pytest.approx(quotients.mean(axis=1).max())
    assert first.worst == pytest.approx(quotients[names.index(first.name)].min())


def test_a_segment_that_is_left_out_has_no_part_in_the_choice(ranking, e2el):
    names, values = e2el
    quotients = values / values.min(axis=0)
    found = {each.segment: each for each in ranking.left_out}
    assert list(found) == list(SEGMENTS)
    chosen = []
    for out, each in enumerate(found.values()):
        others = np.delete(quotients, out, axis=1)
        chosen.append(int(others.mean(axis=1).argmin()))
        assert each.name == names[chosen[-1]]
        assert each.value == pytest.approx(values[chosen[-1], out])
        assert each.relative == pytest.approx(quotients[chosen[-1], out])
    assert len(set(chosen)) > 1
    assert max(each.relative or 0.0 for each in found.values()) > 1.1


def test_a_limit_that_is_broken_in_one_segment_excludes_the_row(folder, e2el, gaps):
    names, values = e2el
    quotients = values / values.min(axis=0)
    best = int(quotients.mean(axis=1).argmin())
    limit = gaps[best].max() * 0.99
    kept = gaps <= limit
    assert kept[best].any()
    assert not kept[best].all()
    every = np.flatnonzero(kept.all(axis=1))
    bests = np.where(kept, values, np.inf).min(axis=0)
    expected = every[int((values[every] / bests).mean(axis=1).argmin())]
    found = asked(loaded(folder, (MINIMIZE, f'{MINIMIZE}\nconstraints = ["itl_p99_ms <= {limit:.6f}"]')), 9)
    assert found.rows[0].name == names[expected]
    assert {row.name for row in found.rows} <= {names[i] for i in every}
    assert list(found.best.values()) == pytest.approx(bests)


def test_where_no_configuration_keeps_the_limits_in_all_segments_what_comes_nearest_is_named(folder, e2el):
    """Long prompts need engines of one GPU for their first token, long answers one engine of all GPUs."""
    _, values = e2el
    _, first_tokens = prices(loaded(folder, (MINIMIZE, 'minimize = "ttft_p50_ms"')))
    limits = {"e2el_p50_ms": 1.1 * values[:, 1].min(), "ttft_p50_ms": 1.2 * first_tokens[:, 0].min()}
    kept = (values <= limits["e2el_p50_ms"]) & (first_tokens <= limits["ttft_p50_ms"])
    assert kept.any(axis=0).all()
    assert not kept.all(axis=1).any()
    constraints = [f"{metric} <= {limit:.6f}" for metric, limit in limits.items()]
    with pytest.raises(AutoscoutError, match=r"constraints in every segment; .* does in all but") as raised:
        asked(loaded(folder, (MINIMIZE, f"{MINIMIZE}\nconstraints = {json.dumps(constraints)}")))
    assert raised.value.exit_code == 3
    impossible = f'{MINIMIZE}\nconstraints = ["e2el_p50_ms <= {values[:, 0].min() * 1.01:.6f}"]'
    with pytest.raises(AutoscoutError, match=r"^stories\.csv: no configuration") as raised:
        asked(loaded(folder, (MINIMIZE, impossible)))
    assert raised.value.exit_code == 3


def test_a_choice_that_breaks_a_limit_of_the_segment_that_was_left_out_has_no_value(folder, e2el, gaps):
    """Without summaries, nothing speaks against long steps, which answers beside long prompts wait for."""
    names, values = e2el
    others = values[:, 1:] / values[:, 1:].min(axis=0)
    chosen = int(others.mean(axis=1).argmin())
    limit = max(gaps[chosen, 1:].max(), gaps[:, 0].min()) * 1.01
    assert gaps[chosen, 0] > limit
    found = asked(loaded(folder, (MINIMIZE, f'{MINIMIZE}\nconstraints = ["itl_p99_ms <= {limit:.6f}"]')))
    without = found.left_out[0]
    assert without.name == names[chosen]
    assert without.value is without.relative is None


def test_a_segment_is_priced_as_a_job_with_this_trace_alone(folder):
    """In the space of all segments, since the server must take the longest request of any of them."""
    job = loaded(folder)
    alone = with_trace_id(Traffic(concurrency=64, trace=str(folder / "stories.csv")))
    assert segment_jobs(job)["stories.csv"].traffic == alone
    text = (folder / "job.toml").read_text().replace("segments = [", "trace = [").replace('["summaries.csv", ', "")
    (folder / "alone.toml").write_text(text.replace(', "chat.jsonl"]', ""))
    own = load_job(folder / "alone.toml")
    assert own.id == segment_jobs(job)["stories.csv"].id
    shared, single = JobSpace.of_job(job), JobSpace.of_job(own)
    assert shared.attributes["longest"] > single.attributes["longest"]
    given = {"tp": 2, "dp": 2}
    assert predict(shared, given, None, own).value == pytest.approx(predict(single, given, None).value)


def test_traces_of_the_same_name_are_told_apart(folder):
    for day in ("monday", "tuesday"):
        (folder / day).mkdir()
        (folder / day / "load.csv").write_text(csv((100, 10), (200, 20)))
    job = loaded(folder, ('"summaries.csv", "stories.csv", "chat.jsonl"', '"monday/load.csv", "tuesday/load.csv"'))
    assert list(segment_jobs(job)) == ["monday/load.csv", "tuesday/load.csv"]


def test_the_verb_prints_each_segment_the_mean_and_the_worst(folder):
    file = written(folder, (MINIMIZE, f'{MINIMIZE}\nconstraints = ["ttft_p99_ms <= 0.001"]'))
    found = json.loads(verbs.run("predict", file, "tp=2", "dp=2", "--json").stdout)
    values = {segment: each["value"] for segment, each in found["segments"].items()}
    assert list(values) == list(SEGMENTS)
    assert found["mean"] == pytest.approx(sum(values.values()) / 3)
    assert (found["worst"], found["worst_in"]) == (max(values.values()), max(values, key=values.__getitem__))
    shown = verbs.run("predict", file, "tp=2", "dp=2").stdout
    rows = [line for line in shown.splitlines() if line.split(" ")[0] in SEGMENTS]
    assert len(rows) == 3
    assert all(row.endswith("violated") for row in rows)
    assert shown.splitlines()[-1].endswith(f"in {found['worst_in']}")


def test_the_verb_ranks_what_has_the_given_knobs_and_leaves_each_segment_out(folder):
    file = written(folder)
    found = json.loads(verbs.run("predict", file, "max_num_batched_tokens=512", "--best", 2, "--json").stdout)
    assert {row["configuration"]["max_num_batched_tokens"] for row in found["rows"]} == {512}
    assert len(found["rows"]) == 2
    shown = verbs.run("predict", file, "max_num_batched_tokens=512", "--best", 2).stdout
    rows, _, left_out = shown.partition("chosen without one")
    for row in found["rows"]:
        line = next(line for line in rows.splitlines() if row["name"] in line)
        assert line.startswith(f"{row['mean'] - 1:+.1%}")
        assert f"{row['worst'] - 1:+.1%} {row['worst_in']}" in line
    for each in found["left_out"]:
        line = next(line for line in left_out.splitlines() if line.startswith(each["segment"]))
        assert line.endswith(each["name"])
        assert f"{each['relative'] - 1:+.1%}" in line


def test_check_accepts_it_and_what_needs_one_load_says_what_to_do(folder):
    file = written(folder)
    checked = verbs.run("check", file)
    assert checked.returncode == 0
    assert "3 traces for `autoscout predict" in checked.stdout
    assert "predict" in checked.stdout.splitlines()[-1]
    exported = verbs.run("export", file)
    assert exported.returncode == 0
    longest = max(asked for asked, _ in SEGMENTS.values()) + 390 + max(answered for _, answered in SEGMENTS.values())
    assert int(re.findall(r"--max-model-len (\d+)", exported.stdout)[0]) >= longest
    for verb in (["tune"], ["shadow"], ["profile"], ["predict", "--best", 1, "--engines"]):
        refused = verbs.run(verb[0], file, *verb[1:])
        assert (verb, refused.returncode) == (verb, 2)
        assert "give one segment as traffic.trace" in refused.stderr


@pytest.mark.parametrize(
    ("segments", "sentence"),
    [
        ('segments = ["stories.csv"]', "traffic.segments has a single trace"),
        ('segments = ["stories.csv", "chat.jsonl"]\ntrace = "stories.csv"', "both a trace and segments"),
        ('segments = ["stories.csv", "./stories.csv"]', "stories.csv twice"),
        ('segments = ["stories.csv", "none.csv"]', "none.csv: cannot read this trace"),
        ('segments = ["stories.csv", "empty.csv"]', "empty.csv: the trace has no requests"),
        ('segments = ["stories.csv", "blank.jsonl"]', "blank.jsonl: the trace has no requests"),
        ('segments = ["stories.csv", "chat.jsonl"]\nsessions = { turns = 2 }', "both sessions and a trace"),
        ("segments = []", "traffic.input_len = 0 must be more than 0"),
        ("segments = [1, 2]", "expected `str`, got `int`"),
    ],
)
def test_wrong_segments_are_one_sentence(folder, segments, sentence):
    (folder / "empty.csv").write_text(csv())
    (folder / "blank.jsonl").write_text("\n")
    whole = 'segments = ["summaries.csv", "stories.csv", "chat.jsonl"]'
    with pytest.raises(AutoscoutError, match=sentence) as raised:
        loaded(folder, (whole, segments))
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


def test_without_a_load_of_their_own_segments_need_arrivals(folder):
    written(folder)
    (folder / "lengths.csv").write_text("input_tokens,output_tokens\n10,10\n")
    with pytest.raises(AutoscoutError, match=r"lengths\.csv has no column arrival_s") as raised:
        loaded(folder, ("concurrency = 64\n", ""), ('"chat.jsonl"', '"lengths.csv"'), ("max_num_seqs = 64, ", ""))
    assert raised.value.exit_code == 2
    assert len(loaded(folder, ("concurrency = 64\n", "")).traffic.segments) == 3


def test_training_has_no_segments(folder):
    text = Path("fixtures/jobs/llama-3.2-3b.toml").read_text()
    written(folder)
    (folder / "train.toml").write_text(text.replace("[traffic]", '[traffic]\nsegments = ["stories.csv", "chat.jsonl"]'))
    with pytest.raises(AutoscoutError, match=r"traffic\.segments are loads of a server") as raised:
        load_job(folder / "train.toml", segmented=True)
    assert raised.value.exit_code == 2
