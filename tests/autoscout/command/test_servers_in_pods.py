"""What Kubernetes is given of a server's line: its port, and where it listens."""

import sys

import msgspec
import pytest

from autoscout.deploy.export import written
from autoscout.machine.starting import job_file
from autoscout.targets.command.exported import exported
from autoscout.targets.jobs import JobSpace, load_job

LINE = [sys.executable, "-m", "sglang.launch_server", "--model", "meta/Llama-8B", "--tp", "2", "--port", "30000"]


def launched(tmp_path, words):
    path = tmp_path / "job.toml"
    path.write_text(job_file(words, tmp_path)[0].replace('"GPU"', '"h100"'))  # trtllm-serve runs on nothing else
    job = load_job(path)
    return job, exported(job, JobSpace.of_job(job).reference)


@pytest.mark.parametrize(
    ("words", "port"),
    [(LINE, 30000), (LINE[:5], 30000), ([*LINE[:5], "--port=8001"], 8001), (["trtllm-serve", "Qwen/Qwen3-8B"], 8000)],
)
def test_a_servers_pod_has_its_port(tmp_path, words, port):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found = yaml.safe_load(written(*launched(tmp_path, words), "k8s"))
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"containerPort": port}]


@pytest.mark.parametrize("form", ["k8s", "jobset"])
@pytest.mark.parametrize("words", [LINE, [*LINE, "--host", "127.0.0.1"], ["trtllm-serve", "Qwen/Qwen3-8B"]])
def test_a_server_is_heard_outside_of_its_pod(tmp_path, words, form):
    """It listened to its own pod alone, as both do by themselves."""
    job, launch = launched(tmp_path, words)
    text = written(job, launch, form)
    assert (text.count("--host 0.0.0.0"), "127.0.0.1" in text) == (1, False)
    assert "0.0.0.0" not in written(job, launch, "command")


def test_a_server_that_listens_everywhere_does_so_as_its_line_has_it(tmp_path):
    text = written(*launched(tmp_path, [*LINE, "--host", "::"]), "k8s")
    assert ("--host ::" in text, "0.0.0.0" in text) == (True, False)


def test_who_starts_a_server_in_a_shell_is_told_where_it_has_to_listen(tmp_path):
    job, launch = launched(tmp_path, LINE)
    launch = msgspec.structs.replace(launch, program=["bash", "-c", f"{' '.join(LINE)} | tee log"])
    assert "add: --host 0.0.0.0, so that the server listens on all addresses" in written(job, launch, "k8s")
