"""One question over engines: the same model, load, limits and devices on vLLM, SGLang and TensorRT-LLM."""

import itertools
from pathlib import Path

import msgspec
import pytest
import verbs
from imported import bring_in

from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.over_engines import EngineRanking, over_engines
from autoscout.tuning.predict import predict
from autoscout.tuning.predicted_front import Compromise, predicted_front, second_of
from kb.records import AutoscoutError, Job
from tui.printing import predictions

FP8 = ["--quantization", "fp8", "--kv-cache-dtype", "fp8"]


def job_of(tmp_path: Path, *line: str, device: str = "h100") -> Job:
    (tmp_path / "job.toml").unlink(missing_ok=True)
    made = verbs.run("init", "--out", tmp_path / "job.toml", "--", *line)
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "job.toml").read_text().replace('device = "GPU"', f'device = "{device}"')
    (tmp_path / "job.toml").write_text(text)
    return load_job(tmp_path / "job.toml")


def asked(job: Job) -> dict[str, EngineRanking]:
    return {each.engine: each for each in over_engines(JobSpace.of_job(job), job, None, 2)}


def test_a_question_to_vllm_is_asked_of_the_others_and_their_lines_are_read_back(tmp_path):
    job = job_of(tmp_path, "vllm", "serve", "Qwen/Qwen3-8B", "--tensor-parallel-size", "2")
    found = asked(job)
    assert list(found) == ["vllm", "sglang", "tensorrt-llm"]
    for engine, each in found.items():
        assert each.ranking is not None
        assert each.ranking.metric == job.objective.metric
        best = each.ranking.best[0].configuration
        back = job_of(tmp_path, *each.line.split()) if engine != "vllm" else each.job
        assert (back.model.hidden, back.cluster.nodes[0].count) == (job.model.hidden, 2)
        assert JobSpace.of_job(back).reference.knobs["tp"] == best["tp"]


def test_number_formats_of_the_line_hold_for_all_or_the_engine_says_why_not(tmp_path):
    plain = asked(job_of(tmp_path, "vllm", "serve", "Qwen/Qwen3-8B"))
    found = asked(job_of(tmp_path, "vllm", "serve", "Qwen/Qwen3-8B", *FP8))
    assert "--quantization fp8" in found["sglang"].line
    assert "--kv-cache-dtype fp8" in found["sglang"].line
    for engine in ("vllm", "sglang"):
        fast, slow = found[engine].ranking, plain[engine].ranking
        assert fast is not None
        assert slow is not None
        assert fast.best[0].value > 1.2 * slow.best[0].value
    assert found["tensorrt-llm"].refused.startswith("has no known flag for fp8")


def test_flags_that_are_added_to_the_line_by_hand_are_predicted(tmp_path):
    """`init` allows such knobs in the job file; added later, they were measured, but predicted without."""
    job_of(tmp_path, "vllm", "serve", "Qwen/Qwen3-8B", *FP8)
    written = (tmp_path / "job.toml").read_text()
    text = written.replace('fix = { kv_cache_dtype = "fp8", quantization = "fp8" }', "")
    assert text != written
    (tmp_path / "by-hand.toml").write_text(text)
    of_init, by_hand = (JobSpace.of_job(load_job(tmp_path / name)) for name in ("job.toml", "by-hand.toml"))
    assert by_hand.reference == of_init.reference
    assert by_hand.reference.knobs["quantization"] == "fp8"


def test_from_sglang_and_on_amd(tmp_path):
    line = ["python", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B", "--tp-size", "2"]
    found = asked(job_of(tmp_path, *line, device="mi300x"))
    assert list(found) == ["sglang", "tensorrt-llm", "vllm"]
    assert found["tensorrt-llm"].refused == "runs only on NVIDIA's GPUs, not on mi300x"
    assert found["vllm"].line.startswith("vllm serve Qwen/Qwen3-8B ")


def test_what_serves_no_model_is_refused():
    job = load_job("fixtures/jobs/llama-3.2-3b.toml")
    with pytest.raises(AutoscoutError, match="starts no server"):
        over_engines(JobSpace.of_job(job), job, None, 1)


def test_the_table_has_all_engines_and_a_line_of_each(tmp_path):
    job_of(tmp_path, "vllm", "serve", "Qwen/Qwen3-8B")
    shown = verbs.run("predict", tmp_path / "job.toml", "--best", "1", "--engines").stdout
    table, *_, lines = shown.split("\n\n")
    assert {row.split()[0] for row in table.splitlines()[2:]} == {"vllm", "sglang", "tensorrt-llm"}
    assert "(your present launch)" in table
    assert "\ntensorrt-llm: trtllm-serve Qwen/Qwen3-8B" in lines
    assert verbs.run("predict", tmp_path / "job.toml", "--engines").returncode == 2


def test_no_row_is_called_the_present_launch_if_that_has_no_prediction(tmp_path, capsys):
    """The best row was, as gains were relative to it."""
    own, *others = asked(job_of(tmp_path, "vllm", "serve", "Qwen/Qwen3-8B")).values()
    assert own.ranking is not None
    unknown = msgspec.structs.replace(own, ranking=msgspec.structs.replace(own.ranking, reference=None))
    predictions.over_engines([unknown, *others])
    assert "present launch" not in capsys.readouterr().out


def test_the_front_of_each_engine_has_no_beaten_row_and_a_line_each(tmp_path, capsys):
    job = job_of(tmp_path, "vllm", "serve", "Qwen/Qwen3-8B", "--tensor-parallel-size", "2")
    found = over_engines(JobSpace.of_job(job), job, None, 1)
    for each in found:
        assert each.ranking is not None
        assert each.second == "tpot_mean_ms"
        assert each.front[0].x >= each.ranking.best[0].value * 0.99, "it begins with the best in the objective"
        for before, after in itertools.pairwise(each.front):
            assert after.x < before.x
            assert after.y < before.y
        assert len(each.lines) == len(each.front)
        assert all(line.split()[0] in ("vllm", "python", "trtllm-serve") for line in each.lines)
    predictions.over_engines(found)
    shown = capsys.readouterr().out
    assert "V: vllm, S: sglang, T: tensorrt-llm" in shown
    assert "none is better in both than these:" in shown
    predictions.save_front(found, tmp_path / "front.svg")
    assert "tpot_mean_ms" in (tmp_path / "front.svg").read_text()
    with pytest.raises(AutoscoutError, match="cannot write the picture"):
        predictions.save_front(found, tmp_path)
    assert "tpot_mean_ms\n" in shown


def test_a_front_holds_the_limits_and_the_second_objective_is_its_other_axis(tmp_path):
    job_of(tmp_path, "vllm", "serve", "Qwen/Qwen3-8B", "--tensor-parallel-size", "2")
    text = (tmp_path / "job.toml").read_text()
    goals = 'also = ["minimize ttft_p99_ms"]\nconstraints = ["tpot_mean_ms <= 9"]'
    (tmp_path / "job.toml").write_text(text.replace("[objective]", f"[objective]\n{goals}"))
    job = load_job(tmp_path / "job.toml")
    own = over_engines(JobSpace.of_job(job), job, None, 1)[0]
    assert own.second == "ttft_p99_ms"
    assert own.front
    for each in own.front:
        kept = predict(JobSpace.of_job(job), each.configuration, None).bounds[0]
        assert kept.value <= 9 * 1.02


def test_a_front_has_learned_from_similar_jobs_as_predictions_have(tmp_path):
    """It knew only the job's own measurements, so that the table and the front above each other disagreed."""
    job = job_of(tmp_path, "vllm", "serve", "Qwen/Qwen3-8B", "--tensor-parallel-size", "2")
    space, second = JobSpace.of_job(job), second_of(job.objective)
    kb, table = tmp_path / "kb.duckdb", tmp_path / "rows.csv"
    assert second is not None
    shorter = msgspec.structs.replace(job, name="shorter", traffic=msgspec.structs.replace(job.traffic, input_len=900))
    knobs = [space.reference.knobs | {"max_num_batched_tokens": count} for count in (2048, 4096, 8192, 16384)]
    rows = [{**each, job.objective.metric: predict(JobSpace.of_job(shorter), each, None).value / 2} for each in knobs]
    table.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n")
    assert bring_in(kb, table, shorter, [], [], []).valid == 4

    def of_one(each: Compromise, kb: Path | None) -> float:
        return predict(space, each.configuration, kb).value

    first = predicted_front(space, job, second, kb)[0]
    assert of_one(first, kb) < 0.9 * of_one(first, None)
    assert first.x == pytest.approx(of_one(first, kb))
