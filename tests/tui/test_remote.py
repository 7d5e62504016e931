"""A session on another host: events over ssh, screens here. `ssh` is a program of this test that runs what it is told
on this machine: processes, pipes and what becomes of these are real. With root and sshd, ssh is too."""

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from asking import until
from pty_terminal import PtyScreens
from tui_samples import configuration, ended, experiment, measured, running

from kb import journal, lock, orders
from kb.records import AutoscoutError
from tui.session.remote import Remote, place
from tui.session.state import fold

ROOT = Path(__file__).parents[2]
THERE = f"env PYTHONPATH={ROOT} {sys.executable} -m tui.cli"


@pytest.fixture
def other(tmp_path, monkeypatch) -> Path:
    """The sessions of another host, which `ssh` reaches; where its process says which it is."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    there = tmp_path / "there"
    (bin_ / "ssh").write_text(
        "#!/bin/bash\n"
        "while [[ $1 == -* ]]; do [[ $1 == -o ]] && shift; shift; done\n"
        '[[ $1 == *nowhere ]] && { printf "ssh: Could not resolve hostname nowhere\\r\\n" >&2; exit 255; }\n'
        f"echo $$ >> {tmp_path}/ssh.pids\n"
        f"export AUTOSCOUT_KB={there}/kb.duckdb\n"
        'shift; exec setsid bash -c "$*"\n'
    )
    (bin_ / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (there / "sessions" / "gpt-1").mkdir(parents=True)
    return there / "sessions" / "gpt-1"


def write(folder: Path, events, mode="ab") -> None:
    with open(folder / "journal.jsonl", mode) as file:
        file.writelines(msgspec.json.encode(e) + b"\n" for e in events)


def vanish(tmp_path: Path, how: signal.Signals = signal.SIGKILL) -> None:
    """All at once, as a host that loses its power; stopped, it is as one behind a network that carries nothing."""
    os.killpg(int((tmp_path / "ssh.pids").read_text().split()[-1]), how)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("me@gpu-07:gpt-1", ("me@gpu-07", "gpt-1")),
        ("gpu-07.cluster:", ("gpu-07.cluster", "")),
        ("gpt-1", None),
        ("-oProxyCommand=x:gpt", None),
        ("me@host:a b", None),
        ("host:$(reboot)", None),
    ],
)
def test_what_names_a_session_elsewhere(text, found):
    assert place(text) == found


def test_a_session_that_is_over_arrives_as_it_is(other):
    write(other, ended())
    session = Remote("me@there", "gpt-1", THERE)
    assert fold(session.everything()) == fold(journal.events(other / "journal.jsonl"))
    assert (session.alive(), session.gone, session.over()) == (None, "", True)
    session.close()


def test_a_session_that_runs_is_followed_and_steered(other):
    write(other, running())
    log = other / "experiments/0010"
    log.mkdir(parents=True)
    (log / "rank0.log").write_text("iteration 3/ 5\n")
    with lock.exclusive(other / "owner.lock"):
        session = Remote("me@there", "gpt-1", THERE)
        events = []
        until(lambda: events.extend(session.more()) or len(events) == len(running()))
        until(lambda: session.tail("experiments/0010") == ["iteration 3/ 5"])
        assert session.alive()
        more = experiment(50, measured(configuration(pp=8), 0.5), 1_700_000_400.0)
        write(other, more)
        until(lambda: events.extend(session.more()) or len(events) == len(running()) + 2)
        session.give(orders.parsed("pin", ["tp=2"], "test"))
        assert [(o.what, o.values) for o in orders.given(other)] == [("pin", {"tp": 2})]
    until(lambda: session.over())
    session.close()


def test_a_host_that_vanishes_is_said_and_what_arrived_is_kept(other, tmp_path):
    write(other, running())
    with lock.exclusive(other / "owner.lock"):
        session = Remote("me@there", "gpt-1", THERE)
        events = []
        until(lambda: events.extend(session.more()) or len(events) == len(running()))
        vanish(tmp_path)
        until(lambda: bool(session.gone))
        with pytest.raises(
            AutoscoutError, match=r"me@there has been unreachable since .* may continue\. What arrived is kept"
        ):
            session.more()
        assert session.alive() is None
    assert journal.events(session.path) == running()


def said_gone(session: Remote) -> bool:
    try:
        session.more()
    except AutoscoutError:
        return True
    return False


@pytest.mark.thorough
def test_a_network_that_carries_nothing_any_more_is_said_though_ssh_runs_on(other, tmp_path):
    write(other, running())
    with lock.exclusive(other / "owner.lock"):
        session = Remote("me@there", "gpt-1", THERE, silent_s=12.0)  # lines come every 5 s
        events = []
        began = time.monotonic()
        until(lambda: events.extend(session.more()) or len(events) == len(running()))
        until(lambda: session.more() == [] and time.monotonic() - began > 13.0)
        vanish(tmp_path, signal.SIGSTOP)
        try:
            until(lambda: said_gone(session))
            with pytest.raises(
                AutoscoutError, match=r"me@there has been unreachable since .*nothing arrived for 12 s.* is kept"
            ):
                session.more()
            assert session.alive() is None
            session.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                vanish(tmp_path)
    assert journal.events(session.path) == running()


def test_no_such_host_and_no_such_session_are_one_sentence(other):
    with pytest.raises(AutoscoutError, match=r"^nowhere: ssh: Could not resolve hostname nowhere$") as gone:
        Remote("nowhere", "gpt-1", THERE)
    assert gone.value.exit_code == 1
    with pytest.raises(AutoscoutError, match="there is no session gpt-9") as missing:
        Remote("me@there", "gpt-9", THERE)
    assert missing.value.exit_code == 2


def test_a_host_that_is_reached_and_says_nothing_is_given_up(other):
    with pytest.raises(AutoscoutError, match=r"^me@there: the host was reached, but sent nothing for 2 s"):
        Remote("me@there", "gpt-1", "exec sleep 60 #", silent_s=0.5)


def test_an_order_to_a_silent_host_holds_up_neither_keys_nor_leaving(other, tmp_path):
    write(other, running())
    there = tmp_path / "there.sh"
    there.write_text(f'[[ "$*" == *steer* ]] && {{ touch {tmp_path}/asked; exec sleep 600; }}\nexec {THERE} "$@"\n')
    with lock.exclusive(other / "owner.lock"):
        shown = PtyScreens("watch", "me@there:gpt-1", "--there", f"bash {there}")
        shown.shows("engine silent")
        shown.press("p")
        until((tmp_path / "asked").exists)
        shown.press("5")
        shown.shows("filter: words")
        os.kill(int((tmp_path / "ssh.pids").read_text().split()[-1]), 0)  # it still waits for an answer
        assert shown.close() == 0
    vanish(tmp_path)


def test_the_screens_of_a_session_elsewhere_until_its_host_vanishes(other, tmp_path):
    write(other, running())
    with lock.exclusive(other / "owner.lock"):
        shown = PtyScreens("watch", "me@there:gpt-1", "--there", THERE)
        shown.shows("engine silent")  # its events are old
        write(other, experiment(50, measured(configuration(pp=8), 0.5), time.time()))
        shown.shows("0.5000")
        vanish(tmp_path)
        shown.shows("me@there has been unreachable")
        for key, shows in (("5", "filter: words"), ("2", "tournament"), ("?", "screens")):
            shown.press(key)
            shown.shows(shows)
        shown.escape()
        shown.press("p")
        shown.shows("this session is not running")
        shown.resize(80, 24)
        shown.settle(some=True)
        assert b"has been unreachable" in shown.redrawn()
    assert shown.close() == 1
    assert b"What arrived is kept" in shown.sent[-1000:]


def test_lines_and_json_of_a_session_elsewhere(other):
    write(other, ended())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "tui.cli", "watch", "there:gpt-1", "--there", THERE]
    plain = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert "the session ended: the budget of experiments is spent" in plain.stderr
    told = subprocess.run([*words, "--json"], capture_output=True, env=environment, check=True)
    assert msgspec.json.decode(told.stdout)["session"] == "gpt-1"


@pytest.fixture
def sshd(tmp_path, monkeypatch):
    """A real one, of this machine alone, and an `ssh` that finds it."""
    port, keys = _free_port(), tmp_path / "keys"
    keys.mkdir()
    for name in ("host", "mine"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {"HostKey": keys / "host", "AuthorizedKeysFile": keys / "mine.pub", "StrictModes": "no", "UsePAM": "no"}
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    where = ["-o", "ListenAddress=127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", "/dev/null", *where, *given], start_new_session=True)
    me = pwd.getpwuid(os.getuid()).pw_name
    (tmp_path / "config").write_text(
        f"Host there\n Hostname 127.0.0.1\n Port {port}\n User {me}\n IdentityFile {keys / 'mine'}\n"
        " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {tmp_path}/config "$@"\n')
    (tmp_path / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    until(lambda: _listens(port))
    yield server
    server.kill()
    server.wait()


@pytest.mark.hosts
@pytest.mark.skipif(os.getuid() != 0 or not Path("/usr/sbin/sshd").exists(), reason="needs root and openssh-server")
def test_over_ssh_itself(sshd, tmp_path):
    folder = tmp_path / "there/sessions/gpt-1"
    folder.mkdir(parents=True)
    write(folder, running())
    there = f"env AUTOSCOUT_KB={tmp_path}/there/kb.duckdb {THERE}"
    with lock.exclusive(folder / "owner.lock"):
        session = Remote("there", "gpt-1", there)
        events = []
        until(lambda: events.extend(session.more()) or len(events) == len(running()))
        session.give(orders.parsed("pin", ["tp=2"], "test"))
        assert len(orders.given(folder)) == 1
        shown = PtyScreens("watch", "there:gpt-1", "--there", there)
        shown.shows("engine silent")
        shown.press("5")
        shown.shows("filter: words")
        assert shown.close() == 0
        children = Path(f"/proc/{sshd.pid}/task/{sshd.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        until(lambda: bool(session.gone))
    assert journal.events(session.path) == running()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0
