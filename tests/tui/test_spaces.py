"""The verbs about spaces: what people and scripts read, and what bad input says."""

import json
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import verbs

TINY = Path("fixtures/jobs/tiny-gpt-cpu.toml")


def autoscout(*arguments: str) -> subprocess.CompletedProcess[str]:
    return verbs.run(*arguments)


def test_the_graph_is_written_as_a_picture(tmp_path):
    picture = tmp_path / "space.svg"
    done = autoscout("space", str(TINY), "--graph", str(picture))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"wrote a picture of the knobs of tiny-gpt-cpu to {picture}\n"
    assert ET.parse(picture).getroot().tag.endswith("svg")
    as_json = json.loads(autoscout("space", str(TINY), "--graph", str(picture), "--json").stdout)
    assert as_json["graph"] == str(picture)
    assert as_json["exact"] is True


def test_a_picture_that_cannot_be_written_is_one_sentence(tmp_path):
    done = autoscout("space", str(TINY), "--graph", str(tmp_path / "nowhere" / "space.svg"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No such file or directory" in done.stderr


def test_count_and_list():
    count = int(autoscout("space", str(TINY), "--count").stdout)
    names = autoscout("space", str(TINY), "--list", "7").stdout.split()
    assert count > 1000
    assert len(set(names)) == 7


@pytest.mark.parametrize(
    ("space", "code", "sentence"),
    [
        ("fix = { pp = 4, mbs = 8, vpp = 2 }", 3, "no configuration of this job is valid"),
        ("fix = { tp = 3 }", 2, "tp is one of 1, 2, 4"),
        ("fix = { tq = 1 }", 2, "did you mean 'tp'?"),
        ("limit = { mbs = [] }", 2, "excludes all values of mbs"),
    ],
)
def test_limits_that_leave_nothing_are_one_sentence_and_an_exit_code(tmp_path, space, code, sentence):
    job = tmp_path / "job.toml"
    job.write_text(f"{TINY.read_text()}\n[space]\n{space}\n")
    done = autoscout("space", str(job), "--count")
    assert done.returncode == code
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_explain_changes_what_was_given_last():
    done = json.loads(autoscout("explain", str(TINY), "pp=2", "vpp=2", "overlap_p2p=false", "--json").stdout)
    assert done["valid"] is False
    assert [v["rule"] for v in done["violations"]] == ["P9"]
    nearest = done["nearest"]["knobs"]
    changed = [name for name, value in done["given"].items() if name in nearest and nearest[name] != value]
    assert len(changed) == 1
    assert nearest["pp"] == 2
