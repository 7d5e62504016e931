"""Logs of Megatron-LM's script become measurements of the configuration that their arguments say."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from cases import few
from imported import bring_in, open_source

from autoscout.space.explain import completed
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.megatron import arguments
from autoscout.targets.megatron import importer as megatron
from kb import store
from kb.records import Cluster, Configuration, Job, Node, SpaceLimits, Traffic

JOB = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
LOG = """\
------------------------ arguments ------------------------
  data_path ....................................... ['/home/ann/data']
  global_batch_size ............................... 16
  hidden_size ..................................... 128
  micro_batch_size ................................ 2
  pipeline_model_parallel_size .................... 2
  tensor_model_parallel_size ...................... 1
  sequence_parallel ............................... False
  virtual_pipeline_model_parallel_size ............ None
  world_size ...................................... 4
-------------------- end of arguments ---------------------
"""
ITERATION = (
    " [2026-11-20 12:00:00] iteration {:8d}/     100 | consumed samples:  80 | elapsed time per iteration (ms): {} | "
    "throughput per GPU (TFLOP/s/GPU): 68.2 | learning rate: 1E-04 | lm loss: 1.0E+01 |\n"
)


def test_megatron_logs(tmp_path):
    kb = tmp_path / "kb" / "kb.duckdb"
    ran = LOG + ITERATION.format(5, 900.0) + ITERATION.format(10, 100.0) + ITERATION.format(15, 120.0)
    memory = "[Rank 0] (after 5 iterations) memory (MB) | allocated: 1.0 | max allocated: 2048.0 | reserved: 1 | x\n"
    (tmp_path / "logs").mkdir()
    for name, text in {
        "a.log": ran + memory,
        "b.log": LOG + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n",
        "c.log": LOG.replace(" 128\n", " 256\n") + ITERATION.format(5, 1.0),
        "d.log": LOG + ITERATION.format(5, 1.0),
        "e.log": LOG + "[rank0]: AssertionError: heads must divide\n",
        "notes.txt": "nothing",
    }.items():
        (tmp_path / "logs" / name).write_text(text)
    assert megatron.recognizes(tmp_path / "logs")
    done = bring_in(kb, tmp_path / "logs", JOB, [], [], [])
    assert (done.reader, done.rows, done.good) == ("megatron", 5, 3)
    assert [(bad.where, bad.reason) for bad in done.bad] == [
        ("c.log", "the run is of a different job: its hidden_size is 256, not 128"),
        ("d.log", "the run logs 1 iterations, but at least 2 are needed"),
    ]
    ok, oom, error = [m for _, m in store.measurements(kb)]
    named = {name: ok.configuration.knobs[name] for name in ("pp", "tp", "cp", "dp", "vpp", "ar", "mbs")}
    assert named == {"pp": 2, "tp": 1, "cp": 1, "dp": 2, "vpp": 1, "ar": "none", "mbs": 2}
    assert (done.valid, JobSpace.of_job(JOB).is_valid(ok.configuration)) == (3, True)
    assert ok.metrics["step_time_s"] == pytest.approx(0.11)
    assert ok.metrics["peak_memory_gib"] == 2.0
    assert "data_path" not in ok.environment
    assert (oom.status, error.status, error.evidence) == ("oom", "error", "AssertionError: heads must divide")


def test_what_only_warns_is_no_failure_and_what_failed_is_no_success(tmp_path):
    """A log with a warning about memory, one with two runs, one that an exception ended, one whose loss was NaN."""
    iterations = "".join(ITERATION.format(i, 100.0) for i in (5, 10, 15))
    other = LOG.replace("micro_batch_size ................................ 2", "micro_batch_size ............ 4")
    for name, text in {
        "a.log": LOG + "WARNING: reduce this if you run out of memory\n" + iterations,
        "b.log": LOG + iterations + other + "torch.OutOfMemoryError: CUDA out of memory. Tried\n" + LOG + iterations,
        "c.log": LOG + iterations + "[rank3]: RuntimeError: NCCL communicator was aborted\n",
        "d.log": LOG + iterations.replace("lm loss: 1.0E+01", "lm loss: nan"),
        "e.log": LOG + iterations + iterations,
        "f.log": LOG + "ValueError: tried again\n" + iterations,
    }.items():
        (tmp_path / name).write_text(text)
    rows = megatron.read(tmp_path, JOB, JobSpace.of_job(JOB)).rows
    assert [(row.where, row.cells.get("status", "ok"), row.cells["mbs"]) for row in rows] == [
        ("a.log", "ok", 2),
        ("b.log, run 1", "ok", 2),
        ("b.log, run 2", "oom", 4),
        ("b.log, run 3", "ok", 2),
        ("c.log", "error", 2),
        ("d.log", "wrong", 2),
        ("e.log, run 1", "ok", 2),
        ("e.log, run 2", "ok", 2),
        ("f.log", "ok", 2),
    ]


def on_gpus(name: str, devices: int, **of_space: object) -> Job:
    job = load_job(f"fixtures/jobs/{name}.toml")
    return msgspec.structs.replace(
        job,
        cluster=Cluster(nodes=[Node("h100", 8)] * (devices // 8)),
        launch=msgspec.structs.replace(job.launch, transformer_engine=True),
        space=msgspec.convert(of_space, SpaceLimits),
    )


def logged(job: Job, configuration: Configuration) -> dict[str, str]:
    """The arguments of its export, as Megatron-LM prints them: what is off is None or False, lists are Python's."""
    flags = arguments.flags(job, configuration)
    said = {flag[2:].replace("-", "_"): str(value) for flag, value in flags.items() if not flag.startswith("--no-")}
    vpp = int(configuration.knobs.get("vpp", 1))
    return {
        **dict.fromkeys(("recompute_granularity", "recompute_modules", "cp_comm_type", "fp8"), "None"),
        **dict.fromkeys(("sequence_parallel", "tp_comm_overlap", "cross_entropy_loss_fusion"), "False"),
        "moe_token_dispatcher_type": "allgather",
        "moe_flex_dispatcher_backend": "deepep",
        "data_parallel_sharding_strategy": "optim_grads_params",
        "exp_avg_dtype": "torch.float32",
        "cross_entropy_fusion_impl": "native",
        **said,
        "world_size": str(arguments.world_size(configuration)),
        "virtual_pipeline_model_parallel_size": str(vpp) if vpp > 1 else "None",
        "overlap_p2p_comm": str(vpp > 1 and "--no-overlap-p2p-communication" not in flags),
    }


def log_of(path: Path, said: dict[str, str]) -> Path:
    rows = "".join(f"  {name} {'.' * 30} {value}\n" for name, value in sorted(said.items()))
    table = f"------- arguments -------\n{rows}------- end of arguments ---\n"
    path.write_text(table + "".join(ITERATION.format(i, 100.0) for i in (1, 2, 3)))
    return path


@pytest.mark.parametrize("name", few(["qwen3-30b-a3b", "llama-3.2-3b"], 1))
def test_a_log_is_of_the_configuration_that_its_arguments_say(tmp_path, name):
    """Recomputation that was off became that of the reference, and knobs of several arguments were lost."""
    job = on_gpus(name, 16, allow=["fp8", "dispatcher", "moments", "offload"])
    space = JobSpace.of_job(job)
    drawn = [space.sample(np.random.default_rng(seed)) for seed in range(30)]
    for i, configuration in enumerate(drawn):
        log_of(tmp_path / f"{i:02}.log", logged(job, configuration))
    rows = list(open_source(tmp_path, job, space).rows)
    for row, configuration in zip(rows, drawn, strict=True):
        in_a_file = {"tp_comm"} & configuration.knobs.keys()
        told = {name: value for name, value in configuration.knobs.items() if name not in in_a_file}
        assert row.problem == ""
        assert {name: row.cells.get(name) for name in told} == told
        assert not in_a_file & row.cells.keys()


def test_what_a_job_leaves_out_is_read_off_a_log_as_it_is(tmp_path):
    """And not as the nearest value that the job has: it would answer for that."""
    wide, narrow = on_gpus("llama-3.2-3b", 16), on_gpus("llama-3.2-3b", 16, limit={"ar": ["none"], "mbs": [1, 2]})
    space = JobSpace.of_job(wide)
    found = completed(space, {"ar": "full", "mbs": 4, "tp": 2, "pp": 1, "cp": 1}, space.reference)
    path = log_of(tmp_path / "a.log", logged(wide, found))
    (row,) = open_source(path, narrow, JobSpace.of_job(narrow)).rows
    assert (row.problem, row.cells["ar"], row.cells["mbs"]) == ("", "full", 4)
    in_fp8 = log_of(tmp_path / "b.log", logged(wide, found) | {"fp8": "hybrid", "fp8_recipe": "delayed"})
    (row,) = open_source(in_fp8, narrow, JobSpace.of_job(narrow)).rows
    assert row.problem == "the run has --fp8-format hybrid, which is not in this job's space"
    other = log_of(tmp_path / "b.log", logged(wide, found) | {"world_size": "32"})
    (row,) = open_source(other, narrow, JobSpace.of_job(narrow)).rows
    assert row.problem == "the run is of a different job: its world_size is 32, not 16"


def test_a_log_of_packed_samples_is_of_its_job(tmp_path):
    """Its batch is of sequences that samples share, and its tokens a second are without padding."""
    job = on_gpus("llama-3.2-3b", 8)
    traffic = Traffic(seq_len=2048, global_batch=128, lengths=[50, 200, 600, 1800])
    job = msgspec.structs.replace(job, task="finetune", traffic=traffic)
    space = JobSpace.of_job(job)
    for packing in (True, False):
        drawn = completed(space, {"packing": packing, "mbs": 1, "cp": 1}, space.reference)
        path = log_of(tmp_path / "a.log", logged(job, drawn) | {"data_path": "['/data/mine.jsonl']"})
        (row,) = open_source(path, job, space).rows
        assert (row.problem, row.cells["packing"]) == ("", packing)
        assert row.cells["tokens_per_s"] == pytest.approx(128 * 662.5 / 0.1)
    (row,) = open_source(log_of(tmp_path / "a.log", logged(job, drawn) | {"global_batch_size": "7"}), job, space).rows
    assert row.problem.startswith("the run is of a different job: its global_batch_size is 7, not ")


def test_a_table_has_the_flags_that_an_export_has(tmp_path):
    """The number of stages of a pipeline rank was left out, and the row was of one without interleaving."""
    job = on_gpus("llama-3.2-3b", 16)
    flags = ["--pipeline-model-parallel-size", "--num-virtual-stages-per-pipeline-rank", "--micro-batch-size"]
    rows = [[*flags, "--context-parallel-size", "--cp-comm-type", "step_time_s"], ["4", "7", "2", "2", "a2a", "3.5"]]
    (tmp_path / "own.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    bring_in(tmp_path / "kb.duckdb", tmp_path / "own.csv", job, [], [], [])
    [(_, row)] = store.measurements(tmp_path / "kb.duckdb")
    assert row.configuration.knobs == {"pp": 4, "cp": 2, "vpp": 7, "cp_comm": "a2a", "mbs": 2}
