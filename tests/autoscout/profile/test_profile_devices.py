"""Which GPUs a job finds and its configurations use, on machines that are only lists of names."""

import contextlib
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from profile_bench import configuration, tiny_job

from autoscout.machine.doctor import Finding, examine
from autoscout.running.cluster import devices, gpus
from autoscout.targets.jobs import profiler_of
from autoscout.targets.megatron.environment import WORKER, describe
from autoscout.targets.megatron.profiler import worker_config
from kb.records import AutoscoutError, Cluster, Job, Node

VLLM = Path("autoscout/targets/vllm/worker").resolve()
A100, A40, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA A40", "NVIDIA H100 80GB HBM3"


def job_on(*nodes: tuple[str, int], python: str = "", transformer_engine: bool = True) -> Job:
    cluster = Cluster(nodes=[Node(device=kind, count=count, memory_gib=40.0) for kind, count in nodes])
    return msgspec.structs.replace(tiny_job(python=python, transformer_engine=transformer_engine), cluster=cluster)


MIXED = job_on(("a100", 2), ("a40", 1))


@pytest.mark.parametrize(
    ("job", "gpus"),
    [
        (MIXED, [A40, A100, A100]),
        (job_on(("a100", 1), ("a100", 1)), [A100, A100, A40]),
        (job_on(("a100-40g", 1)), ["NVIDIA A100-PCIE-40GB"]),
        (job_on(("homemade", 2)), ["Lorem", "Ipsum"]),
        (job_on(("homemade", 1), ("a40", 1)), [A40, "Lorem"]),
    ],
    ids=["mixed", "nodes-of-one-kind", "variant", "unknown", "unknown-and-known"],
)
def test_enough_gpus(job: Job, gpus: list[str]) -> None:
    assert devices.shortage(job, gpus) == ""


def test_eight_equal_gpus_are_named_once() -> None:
    told = {"torch": "2.13.0", "gpus": ", ".join([A100] * 8), "gpu_memory_gib": ", ".join(["79.6"] * 7 + ["39.6"])}
    said = f"torch 2.13.0, gpus 8 × {A100}, gpu_memory_gib 7 × 79.6, 39.6"
    assert devices.in_words({**told, "driver": ""}) == said


@pytest.mark.parametrize(
    ("job", "gpus", "said"),
    [
        (MIXED, [A100, A100], f"needs 3 GPUs but this machine shows 2 (2 {A100}); correct cluster.nodes"),
        (MIXED, [A100, A40, A40], f"needs 2 a100 but this machine shows 1 (1 {A100}, 2 {A40})"),
        (job_on(("h100", 1)), [A100], "needs 1 h100 but this machine shows 0"),
        (job_on(("a40", 1)), ["NVIDIA RTX A4000"], "needs 1 a40"),
        (job_on(("a100", 1), ("a100-40g", 1)), [A100, A40], "needs 1 a100-40g"),
        (job_on(("homemade", 2)), ["Lorem"], "needs 2 GPUs but"),
        (job_on(("h100", 2)), [], "needs 2 GPUs but this machine shows none; correct cluster.nodes"),
    ],
    ids=["total", "kind", "other-kind", "similar-name", "claimed-once", "unknown", "none"],
)
def test_missing_gpus(job: Job, gpus: list[str], said: str) -> None:
    assert said in devices.shortage(job, gpus)
    assert ("name their hosts in cluster.hosts" in devices.shortage(job, gpus)) == (len(gpus) < job.devices)
    served = msgspec.structs.replace(job, task="serve")
    assert "cluster.hosts" not in devices.shortage(served, gpus), "a server is measured on one machine"


@pytest.mark.parametrize(
    ("job", "knobs", "gpus", "visible"),
    [
        (MIXED, {"dp": 3, "a100": 2, "a40": 1}, [A40, A100, A100], "1,2,0"),
        (MIXED, {"dp": 2, "a100": 2, "a40": 0}, [A40, A100, A100], "1,2"),
        (MIXED, {"a100": 0, "a40": 1}, [A100, A100, A40], "2"),
        (job_on(("a100-40g", 1), ("a40", 1)), {"a100_40g": 1, "a40": 0}, [A40, A100], "1"),
        (job_on(("slow", 1), ("h100", 1)), {"dp": 2, "slow": 1, "h100": 1}, [H100, "Lorem"], "1,0"),
        (job_on(("a100", 2)), {"tp": 2}, [A40, A100, A100, A100], "1,2"),
        (job_on(("a100", 2)), {"tp": 2}, [A100, A100, A100], None),
    ],
    ids=["all", "one-kind", "the-other", "variant", "job-order", "one-kind-among-others", "alike"],
)
def test_a_configuration_sees_its_gpus_only(
    job: Job, knobs: dict[str, int], gpus: list[str], visible: str | None
) -> None:
    variables = worker_config(job, configuration(**knobs), gpus)["environment"]
    assert variables.get("CUDA_VISIBLE_DEVICES") == visible
    assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


SMALL, SLICE = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"


def sized(kind: str, count: int, gib: float = 0.0) -> Job:
    return msgspec.structs.replace(tiny_job(), cluster=Cluster(nodes=[Node(device=kind, count=count, memory_gib=gib)]))


@pytest.mark.parametrize(
    ("job", "names", "memory", "said"),
    [
        (sized("a100", 1), [SMALL], [39.4], f"(1 {SMALL}): {SMALL} is not one of 79 GiB"),
        (sized("a100", 1), [SMALL], [], "is not one of 79 GiB"),
        (sized("a100", 1), [SLICE], [79.2], "MIG 1g.10gb is not one of 79 GiB"),
        (sized("a100", 2), [A100, SMALL], [79.2, 39.4], "needs 2 a100 but this machine shows 1"),
        (sized("h100", 1), ["NVIDIA H100 NVL"], [23.5], "is not one of 79 GiB"),
        (sized("a100", 1), [A100], [79.2], ""),
        (sized("a100", 1), [A100], [0.0], ""),
        (sized("a100-40g", 1), [SMALL], [39.4], ""),
        (sized("a100", 1, gib=40.0), [SMALL], [39.4], ""),
        (sized("a100", 1, gib=10.0), [SLICE], [9.5], ""),
        (sized("gb10", 1), ["NVIDIA GB10"], [0.0], ""),
    ],
    ids=[
        "half",
        "by name",
        "slice",
        "one of two",
        "by memory",
        "whole",
        "[N/A]",
        "40",
        "said so",
        "said slice",
        "unified",
    ],
)
def test_devices_are_what_they_are(job: Job, names: list[str], memory: list[float], said: str) -> None:
    found = devices.shortage(job, names, memory)
    assert said in found
    assert bool(found) == bool(said)


def driver(folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, apps: str = "") -> None:
    """A driver's program that says this, in a PATH of its own."""
    path = folder / "nvidia-smi"
    path.write_text(f'#!/bin/sh\ncase "$*" in *compute-apps*) echo "{apps}";; *) echo "{gpus}";; esac\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_memory_that_others_hold_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.look() == []
    table = f"0, GPU-aa, {A100}, 640, 81920\n1, GPU-bb, {A100}, 61440, 81920\n2, GPU-cc, {A100}, [N/A], [N/A]"
    driver(tmp_path, monkeypatch, table)
    assert gpus.held() == "GPU 1 has 60.0 of 80.0 GiB in use"
    assert gpus.held("0,2") == gpus.held("GPU-aa") == ""
    assert gpus.held("1") == gpus.held("GPU-bb") == gpus.held()


def test_what_a_server_holds_is_never_the_hosts_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = gpus.parsed(f"0, GPU-aa, {A100}, 1024, 81920")
    driver(tmp_path, monkeypatch, f"0, GPU-aa, {A100}, 31744, 81920", f"{os.getpid()}, GPU-aa, 30720")
    assert gpus.of_processes({os.getpid()}) == 30.0
    driver(tmp_path, monkeypatch, f"0, GPU-aa, {A100}, 31744, 81920", "4026532, GPU-aa, [N/A]")
    assert gpus.of_processes({os.getpid()}) is None, "a container sees the host's ids"
    assert gpus.more_than(before) == 30.0
    driver(tmp_path, monkeypatch, f"0, GPU-aa, {A100}, [N/A], [N/A]")
    assert gpus.more_than(before) is None


def test_an_experiment_does_not_start_beside_others_and_is_no_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_on(("a100", 1), python=target_with(tmp_path, [A100]))
    driver(tmp_path, monkeypatch, f"0, GPU-aa, {A100}, 61440, 81920")
    with contextlib.closing(profiler_of(job)) as profiler:
        measured = profiler.run(configuration(), "tiny", tmp_path / "1")
    assert measured.status == "infrastructure"
    assert "before the start GPU 0 has 60.0 of 80.0 GiB in use" in measured.evidence
    assert not (tmp_path / "1").exists()


def test_the_doctor_says_what_the_driver_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gpu() -> Finding:
        return next(
            f for f in examine(tmp_path / "kb.duckdb", job_on(("a100", 1), python="/bin/false")) if f.subject == "gpu"
        )

    driver(tmp_path, monkeypatch, f"0, GPU-aa, {A100}, 12, 81920\n1, GPU-bb, {A100}, 12, 81920")
    assert (gpu().ok, gpu().found) == (True, f"2 × {A100} (80 GiB)")
    driver(tmp_path, monkeypatch, f"0, GPU-aa, {A100}, 61440, 81920")
    assert (gpu().ok, "60.0 of 80.0 GiB in use" in gpu().found) == (False, True)
    driver(tmp_path, monkeypatch, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert not gpu().ok
    assert gpu().found.startswith("nvidia-smi is installed, but no driver answers it (NVIDIA-SMI has failed because")


def test_slices_are_listed_in_place_of_the_gpu_that_is_cut_up() -> None:
    listed = (
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-e86cb44c)\n"
        "  MIG 3g.40gb     Device  0: (UUID: MIG-GPU-e86cb44c/1/0)\n"
        "  MIG 1g.10gb     Device  1: (UUID: MIG-GPU-e86cb44c/9/0)\n"
        "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6)"
    )
    code = f"import probe; print(probe.cut_up({listed!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=VLLM, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{0: ['3g.40gb', '1g.10gb'], 1: []}"


@pytest.mark.parametrize(
    ("total", "free", "reserved", "before", "beside"),
    [(80.0, 17.4, 60.0, 79.4, 2.6), (80.0, 7.4, 60.0, 69.4, 2.6), (80.0, 19.4, 60.0, 79.4, 0.6)],
    ids=["context and NCCL", "and others", "context only"],
)
def test_memory_beside_the_allocators_counts(
    total: float, free: float, reserved: float, before: float, beside: float
) -> None:
    code = f"import train; print(train._outside_the_allocator({total}, {free}, {reserved}, {before}))"
    environment = {**os.environ, "PYTHONPATH": str(WORKER)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(beside)


@pytest.mark.parametrize(("kind", "wanted"), [("h100", True), ("b200", False), ("gb300", False)])
def test_one_queue_where_megatron_lm_insists(kind: str, wanted: bool) -> None:
    variables = worker_config(job_on((kind, 2)), configuration(tp=2), [])["environment"]
    assert ("CUDA_DEVICE_MAX_CONNECTIONS" in variables) == wanted


@pytest.mark.parametrize(("kind", "wanted"), [("a100", True), ("h100", False), ("b200", False)])
def test_user_buffers_do_without_multicast_before_hopper(kind: str, wanted: bool) -> None:
    """Transformer Engine refuses them there otherwise, and the guide's layouts of several devices have them."""
    said = worker_config(job_on((kind, 2)), configuration(tp=2, sp=True, tp_comm_overlap=True), [])["environment"]
    assert ("UB_SKIPMC" in said) == wanted
    assert "UB_SKIPMC" not in worker_config(job_on((kind, 2)), configuration(tp=2, sp=True), [])["environment"]


def test_names_survive_the_environment() -> None:
    assert devices.gpus_of({"gpus": f"{A100}, {A40}"}) == [A100, A40]
    assert devices.gpus_of({"gpus": ""}) == devices.gpus_of({}) == []


@pytest.mark.parametrize(("given", "seen"), [("", "2,0"), ("4,5,6", "6,4"), ("GPU-a,GPU-b,GPU-c", "GPU-c,GPU-a")])
def test_indices_count_among_the_gpus_that_the_ranks_were_given(given: str, seen: str) -> None:
    code = "import os, train; train._adopt({'CUDA_VISIBLE_DEVICES': '2,0'}); print(os.environ['CUDA_VISIBLE_DEVICES'])"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": given, "PYTHONPATH": str(WORKER)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == seen


def target_with(folder: Path, gpus: list[str]) -> str:
    """An interpreter whose probe reports these GPUs."""
    found = {
        "torch": "2",
        "megatron-core": "0",
        "transformer-engine": "2",
        "devices": str(len(gpus)),
        "gpus": ", ".join(gpus),
    }
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    path.chmod(0o755)
    return str(path)


def test_a_machine_that_lacks_gpus_is_refused(tmp_path: Path) -> None:
    python = target_with(tmp_path, [A100, A40])
    assert describe(job_on(("a100", 1), ("a40", 1), python=python))["gpus"] == f"{A100}, {A40}"
    for job, said in (
        (job_on(("a100", 2), python=python), "needs 2 a100"),
        (job_on(("a100", 8), python=python), "needs 8 GPUs"),
    ):
        with pytest.raises(AutoscoutError, match=said) as refused:
            describe(job)
        assert refused.value.exit_code == 2


def test_unfused_attention_is_not_ranked_on_gpus(tmp_path: Path) -> None:
    python = target_with(tmp_path, [A100])
    with pytest.raises(AutoscoutError, match=r"Transformer Engine is installed; set launch\.transformer_engine = true"):
        describe(job_on(("a100", 1), python=python, transformer_engine=False))
    path = Path(python)
    path.write_text(path.read_text().replace('"transformer-engine": "2", ', ""))
    with pytest.raises(AutoscoutError, match="has no Transformer Engine, and the fastest configuration without"):
        describe(job_on(("a100", 1), python=python))


def test_a_transformer_engine_of_another_torch_is_refused(tmp_path: Path) -> None:
    """Megatron-core would go on without it, silently."""
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('transformer_engine_torch.so: undefined symbol: _ZN3c10')")
    code = "import probe; print(probe.broken('transformer_engine.pytorch')); print(probe.broken('json'))"
    environment = {**os.environ, "PYTHONPATH": f"{WORKER}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "ImportError: transformer_engine_torch.so: undefined symbol: _ZN3c10\n\n"
    python = Path(target_with(tmp_path, [A100]))
    python.write_text(python.read_text().replace('"devices"', '"broken": "ImportError: undefined symbol", "devices"'))
    with pytest.raises(AutoscoutError, match=r"its Transformer Engine 2 cannot be imported with torch 2 \(ImportErr"):
        describe(job_on(("a100", 1), python=str(python)))
    lacks = r"ModuleNotFoundError: No module named \u0027pydantic\u0027"
    python.write_text(python.read_text().replace("ImportError: undefined", lacks))
    with pytest.raises(AutoscoutError, match=r"No module named 'pydantic' symbol\); `pip install pydantic`"):
        describe(job_on(("a100", 1), python=str(python)))


def test_an_interpreter_that_is_closed_to_us_says_whose_it_is(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o644)
    owner = pwd.getpwuid(python.stat().st_uid).pw_name
    with pytest.raises(AutoscoutError, match=rf"cannot be run \(Permission denied: it belongs to {owner}\)"):
        describe(job_on(("a100", 1), python=str(python)))
    with pytest.raises(AutoscoutError, match=r"cannot be run \(it is a folder\); check launch.python"):
        describe(job_on(("a100", 1), python=str(tmp_path)))


def test_gpus_that_the_driver_lost_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost."
    driver(tmp_path, monkeypatch, f"GPU-aa, 0\n{said}")
    with pytest.raises(
        AutoscoutError,
        match=r"needs 2 GPUs but this machine shows 1 .*; the driver no longer reaches 1 of the GPUs: Unable to",
    ):
        describe(job_on(("a100", 2), python=target_with(tmp_path, [A100])))


def test_a_machine_without_gpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AutoscoutError, match="torch sees no GPU") as refused:
        describe(job_on(("a100", 1), python=target_with(tmp_path, [])))
    assert refused.value.exit_code == 2


@pytest.mark.engine
def test_the_probe_of_a_target_without_gpus() -> None:
    """With a build of torch for CPUs too."""
    command = [sys.executable, str(WORKER / "probe.py"), "cuda"]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["devices"], found["gpus"]) == ("0", "")


@pytest.mark.parametrize(
    ("job", "gpus", "taken", "spare", "visible"),
    [
        (job_on(("a100", 2)), [A100] * 4, [], [2, 3], "2,3"),
        (job_on(("a100", 2)), [A100] * 4, [2], [3], "0,3"),
        (job_on(("a100", 2)), [A100] * 2, [], [], None),
        (job_on(("a100", 2)), [A100, A100, A40, A100], [], [3], "0,3"),
        (MIXED, [A100, A100, A100, A40, A40], [], [2, 4], "0,2,4"),
    ],
    ids=["others", "one-is-taken", "no-others", "another-kind", "of-each-kind"],
)
def test_a_confirmation_is_on_other_gpus_where_there_are_free_ones(
    job: Job, gpus: list[str], taken: list[int], spare: list[int], visible: str | None
) -> None:
    assert devices.unused(job, gpus, [], taken) == spare
    knobs = {"dp": 3, "a100": 2, "a40": 1} if job is MIXED else {"tp": 2}
    variables = worker_config(job, configuration(**knobs), gpus, [], spare)["environment"]
    assert variables.get("CUDA_VISIBLE_DEVICES") == visible


def test_gpus_are_called_as_they_were_given() -> None:
    assert [devices.physical(i, "4,5") for i in (0, 1)] == ["4", "5"]
    assert devices.physical(3, "") == "3"
