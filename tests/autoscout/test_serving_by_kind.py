"""Serving with several kinds of device: what each takes of the requests, and the router that shares them out."""

import collections
import contextlib
import http.client
import http.server
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from autoscout.deploy.serving_by_kind import fleet, shares
from autoscout.running.processes import free_port
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.study import Study
from kb.records import AutoscoutError
from tui.cli import cli

NGINX = shutil.which("nginx")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Of the paper's serving job, in which only the A100s were measured: 21 ms a token and 9 requests a second at
    best."""
    kb = tmp_path_factory.mktemp("fleet") / "kb.duckdb"
    job = "fixtures/jobs/llama-3-8b-serve.toml"
    study = Study(job, kb=kb, profiles=6, strategy="random", warm_start="off", name="served")
    seen: dict[str, int] = {}
    while configurations := study.ask():
        for configuration in configurations:
            if configuration.knobs["a40"]:
                study.tell(configuration, failed="error", evidence="its cooling is broken")
                continue
            value = 21.0 + seen.setdefault(configuration.id, len(seen))
            study.tell(configuration, {"tpot_mean_ms": value, "requests_per_s": 189.0 / value})
    return kb, study.session


@given(st.lists(st.floats(0.01, 1000.0), min_size=2, max_size=6))
def test_weights_are_whole_per_cent_as_near_to_the_rates_as_such_are(rates):
    found = shares(rates)
    exact = [100 * rate / sum(rates) for rate in rates]
    assert all(weight >= 1 for weight in found)
    if min(exact) >= 1:
        assert sum(found) == 100
        assert all(abs(weight - share) < 1 for weight, share in zip(found, exact, strict=True))


def test_each_kind_has_the_best_of_its_own_and_a_share_by_its_rate(session):
    kb, name = session
    a100, a40 = fleet(kb, name)
    assert (a100.kind, a100.devices, a100.measured) == ("a100", 8, True)
    assert a100.rate == pytest.approx(9.0, rel=0.01)
    assert (a40.kind, a40.devices, a40.measured) == ("a40", 4, False)
    space = JobSpace.of_job(load_job("fixtures/jobs/llama-3-8b-serve.toml"))
    assert space.is_valid(a40.configuration)
    assert 0 < a40.rate < a100.rate
    assert a100.weight + a40.weight == 100
    assert a100.weight == pytest.approx(100 * a100.rate / (a100.rate + a40.rate), abs=1)


def test_the_router_is_written_with_each_kinds_launch(session):
    kb, name = session
    said = CliRunner().invoke(cli, ["export", name, "--format", "router", "--kb", str(kb)])
    assert said.exit_code == 0, said.output
    assert re.search(r"8 a100: 9 \(measured\); 4 a40: [\d.]+ \(predicted\)", said.output)
    assert said.output.count("vllm serve") == 2
    assert re.search(r"server AUTOSCOUT-a100:8000 weight=\d+;", said.output)
    one = CliRunner().invoke(cli, ["export", name, "--kb", str(kb)])
    assert "`--format router` exports all of them" in one.output


def test_a_job_of_one_kind_has_no_router(tmp_path):
    kb = tmp_path / "kb.duckdb"
    study = Study("fixtures/jobs/tiny-llama-serve-cpu.toml", kb=kb, profiles=1, warm_start="off", name="one")
    (first,) = study.ask()
    study.tell(first, {"output_tokens_per_s": 100.0})
    with pytest.raises(AutoscoutError, match="needs a job whose cluster has several kinds of device"):
        fleet(kb, study.session)


@pytest.mark.skipif(NGINX is None, reason="needs nginx (apt-get install nginx-light)")
def test_nginx_shares_requests_out_by_the_weights(session, tmp_path):
    kb, name = session
    weights = {one.kind: one.weight for one in fleet(kb, name)}
    text = CliRunner().invoke(cli, ["export", name, "--format", "router", "--kb", str(kb)]).output
    port, counts = free_port(), collections.Counter()
    with contextlib.ExitStack() as ends:
        for kind in weights:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _answering(kind, counts))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            ends.callback(server.shutdown)
            text = text.replace(f"AUTOSCOUT-{kind}:8000 weight", f"127.0.0.1:{server.server_port} weight")
        (tmp_path / "router.conf").write_text(text.replace("listen 8080", f"listen 127.0.0.1:{port}"))
        main = f"daemon off; pid {tmp_path}/pid; error_log stderr; events {{}}\nhttp {{\naccess_log off;\n"
        temporary = "".join(
            f"{n}_temp_path {tmp_path}/{n};\n" for n in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (tmp_path / "nginx.conf").write_text(f"{main}{temporary}include {tmp_path}/router.conf;\n}}\n")
        nginx = subprocess.Popen([NGINX or "", "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path)])
        ends.callback(nginx.wait)
        ends.callback(nginx.terminate)
        for _ in range(100):
            assert _asked(port) == 200
    assert counts == weights


def _answering(kind: str, counts: collections.Counter[str]) -> type[http.server.BaseHTTPRequestHandler]:
    class Answering(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            counts[kind] += 1
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing a request."""

    return Answering


def _asked(port: int) -> int:
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status
        except ConnectionRefusedError:  # it begins
            continue
        finally:
            connection.close()
