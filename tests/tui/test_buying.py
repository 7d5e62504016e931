"""`autoscout predict --usd`: which cluster, what twice of a thing would bring, and how sure it is."""

import json
import math
from functools import cache
from pathlib import Path

import pytest
import verbs

from autoscout.simulate.training.step import USUAL
from kb import store

JOBS = Path("fixtures/jobs")
WANTED = str(JOBS / "mpt-70b-stack.toml")
RECORDED = Path("fixtures/recorded/h100-session.jsonl")
MODEL = "layers = 16, hidden = 2048, heads = 32, vocab = 32000, kv_heads = 8, ffn = 8192, gated = true"
SMALL = f"""
task = "pretrain"
model = {{ {MODEL}, norm = "rmsnorm", bias = false, position = "rope" }}
traffic = {{ seq_len = 4096, global_batch = 16 MIX }}
"""
TODAY = """
name = "llama-1b-one-gpu"
target = "megatron"
cluster = { nodes = [{ device = "h100", count = 1 }] }
objective = { minimize = "step_time_s" }
"""
TOMORROW = """
name = "llama-1b-stack"
target = "stack"
cluster = { nodes = [{ device = "h100", count = 16 }] }
objective = { minimize = "latency_s" }
"""
CHAT = ', mix = [{ model = { preset = "llama-3.1-8b" }, '
CHAT += 'task = "serve", seq_len = 1024, output_len = 128, concurrency = 64 }]'


@pytest.fixture(scope="module")
def kb(tmp_path_factory) -> str:
    """What one H100 measured of a 1B model."""
    path = tmp_path_factory.mktemp("kb") / "kb.duckdb"
    store.ingest(path, RECORDED)
    return str(path)


@pytest.fixture
def today(tmp_path) -> str:
    path = tmp_path / "today.toml"
    path.write_text(TODAY + SMALL.replace("MIX", ""))
    return str(path)


@pytest.fixture
def tomorrow(tmp_path) -> str:
    path = tmp_path / "tomorrow.toml"
    path.write_text(TOMORROW + SMALL.replace("MIX", ""))
    return str(path)


def autoscout(*arguments):
    return verbs.run(*arguments, **{"AUTOSCOUT_KB": "/nonexistent/kb.duckdb"})


@cache
def answer(*arguments):
    done = autoscout("predict", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_more_money_never_buys_a_slower_cluster_and_no_budget_is_broken():
    some, more = (answer(WANTED, "--usd", usd) for usd in ("2e7", "4e7"))
    assert some["usd"] <= 2e7 < more["usd"] <= 4e7
    assert more["workloads"][0]["seconds"] <= some["workloads"][0]["seconds"]
    assert answer(WANTED, "--usd", "4e7", "--watts", "400000")["watts"] <= 4e5


def test_without_measurements_the_interval_is_that_of_published_steps_and_says_so():
    found = answer(WANTED, "--usd", "4e7")
    assert found["calibration"]["source"] == "published steps alone"
    assert found["calibration"]["factor"] == 1
    first = found["workloads"][0]
    assert math.log(first["high"] / first["seconds"]) == pytest.approx(1.645 * 0.32, rel=1e-3)
    assert "published steps alone" in autoscout("predict", WANTED, "--usd", "4e7").stdout


def test_a_measured_job_is_priced_by_its_own_simulator_which_its_rows_correct(kb, today, tomorrow):
    plain = answer(tomorrow, "--usd", "1e6")["workloads"][0]
    found = answer(tomorrow, "--usd", "1e6", "--kb", kb, "--today", today)
    step, used = found["workloads"][0], found["simulator"]
    assert (step["by"], used["name"], used["jobs"]) == ("today's simulator", "analytic", 1)
    assert used["rows"] >= 5
    assert found["faster"] == pytest.approx(found["today"] / step["seconds"])
    assert 0.9 * found["today"] / 16 < step["seconds"] < 2 * found["today"] / 16  # sixteen instead of one
    assert step["high"] / step["low"] < plain["high"] / plain["low"]
    # never surer than the simulator is of what was never measured
    assert math.log(step["high"] / step["seconds"]) >= 1.64 * USUAL
    said = autoscout("predict", tomorrow, "--usd", "1e6", "--kb", kb, "--today", today).stdout
    assert "the new cluster is" in said
    assert "design model" not in said


def test_bandwidth_between_islands_is_what_the_design_says(kb, today, tmp_path):
    seconds = []
    for gb_s in (25, 200):
        path = tmp_path / f"{gb_s}.toml"
        path.write_text(
            TOMORROW + SMALL.replace("MIX", "") + f"\n[space]\nfix = {{ bandwidth_2 = {gb_s}, npus_1 = 8 }}\n"
        )
        seconds.append(answer(str(path), "--usd", "1e7", "--kb", kb, "--today", today)["workloads"][0]["seconds"])
    assert seconds[1] < seconds[0]


def imported(kb: Path, job: Path, rows: str) -> None:
    table = job.with_suffix(".csv")
    table.write_text(rows)
    done = autoscout("import", str(table), "--job", str(job), "--kb", str(kb))
    assert done.returncode == 0, done.stderr


def test_a_measured_server_prices_tomorrows_requests(tmp_path):
    load = "input_len = 1024, output_len = 128, concurrency = 64"
    job, stack = tmp_path / "chat.toml", tmp_path / "stack.toml"
    model = 'task = "serve"\nmodel = { preset = "llama-3.1-8b" }\n'
    job.write_text(
        f'name = "chat"\ntarget = "vllm"\n{model}traffic = {{ {load} }}\n'
        'cluster = { nodes = [{ device = "h100", count = 1 }] }\nobjective = { minimize = "e2el_p50_ms" }\n'
    )
    stack.write_text(
        f'name = "chats"\ntarget = "stack"\n{model}traffic = {{ {load} }}\n'
        'cluster = { nodes = [{ device = "h100", count = 16 }] }\nobjective = { minimize = "latency_s" }\n'
    )
    imported(tmp_path / "kb.duckdb", job, "max_num_seqs,e2el_p50_ms\n64,1900\n128,1850\n")
    found = answer(str(stack), "--usd", "1e6", "--kb", str(tmp_path / "kb.duckdb"), "--today", str(job))
    assert found["simulator"] == {"name": "analytic-serving", "jobs": 1, "rows": 2}
    assert found["workloads"][0]["kind"] == "request"
    assert 0 < found["workloads"][0]["low"] < found["today"] == 1.85


def test_a_job_that_no_simulator_knows_corrects_the_design_model(kb, tomorrow, tmp_path):
    job = tmp_path / "own.toml"
    own = 'name = "own"\ntarget = "command"\nlaunch = { command = "train {mbs}", metrics = { step_time_s = "(.*)" } }\n'
    own += 'cluster = { nodes = [{ device = "h100", count = 1 }] }\nobjective = { minimize = "step_time_s" }\n'
    knob = '[[space.knob]]\nname = "mbs"\nvalues = [1, 2]\nsets = "{mbs}"\n'
    job.write_text(own + SMALL.replace("MIX", "") + knob)
    imported(tmp_path / "own.duckdb", job, "mbs,step_time_s\n1,1.2\n2,1.0\n")
    plain = answer(tomorrow, "--usd", "1e6")
    found = answer(tomorrow, "--usd", "1e6", "--kb", str(tmp_path / "own.duckdb"), "--today", str(job))
    learned = found["calibration"]
    assert found["simulator"] is None
    assert (learned["jobs"], learned["today_rows"]) == (1, 2)
    assert found["workloads"][0]["by"] == "design model"
    assert found["workloads"][0]["seconds"] == pytest.approx(learned["factor"] * plain["workloads"][0]["seconds"])
    assert learned["deviation"] > plain["calibration"]["deviation"]  # two clusters err, each by itself


def test_another_model_is_corrected_but_not_said_to_be_faster(kb, today):
    assert answer(WANTED, "--usd", "4e7", "--kb", kb, "--today", today)["faster"] is None


def test_of_two_kinds_of_jobs_only_the_kind_that_was_measured_is_corrected(kb, today, tmp_path):
    (tmp_path / "both.toml").write_text(TOMORROW + SMALL.replace("MIX", CHAT))
    both = str(tmp_path / "both.toml")
    plain, found = answer(both, "--usd", "1e6"), answer(both, "--usd", "1e6", "--kb", kb, "--today", today)
    assert [w["kind"] for w in found["workloads"]] == ["step", "request"]
    assert [w["by"] for w in found["workloads"]] == ["today's simulator", "design model"]
    wide = [w["high"] / w["low"] for w in (plain["workloads"][1], found["workloads"][1])]
    assert wide[0] == pytest.approx(wide[1])


def test_twice_of_a_thing_never_makes_it_slower():
    found = answer(WANTED, "--usd", "4e7")["doubled"]
    assert {d["what"] for d in found} >= {"devices", "bandwidth between islands", "memory of a device"}
    assert all(d["gain"] >= 0.999 for d in found if not d["what"].startswith("size"))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([WANTED, "--usd", "1e5"], 3, "the cheapest costs 10,155,520 dollars"),
        ([WANTED, "--watts", "1000"], 3, "the most frugal draws"),
        ([WANTED, "--usd", "0"], 2, "--usd"),
        ([str(JOBS / "llama-3.2-3b.toml"), "--usd", "1e6"], 2, 'only for target = "stack"'),
        ([WANTED, "tp=2", "--usd", "1e6"], 2, "limit knobs in the job's [space]"),
        ([WANTED, "--today", WANTED], 2, "--today needs --usd or --watts"),
        ([WANTED, "--usd", "4e7", "--today", str(JOBS / "tiny-gpt-cpu.toml")], 2, "no measured row of it"),
    ],
)
def test_what_cannot_be_answered_says_why(arguments, code, says):
    done = autoscout("predict", *arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
