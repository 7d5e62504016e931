"""The worker is Megatron-LM: its configuration objects are what Megatron-LM's own parser made of the same flags.

The parser's answers are recorded (tests/tools/megatron_parser.py says with which version and command); where a checkout
of it is named in MEGATRON_LM they are made anew.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.tools import megatron_parser as parser

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]


@pytest.mark.skipif(
    importlib.util.find_spec("megatron") is not None and importlib.metadata.version("megatron-core") != "0.16.1",
    reason="the recorded parser is that of megatron-core 0.16.1",
)
def test_every_field_is_megatron_lms_but_for_the_intended() -> None:
    """In a process of its own: it pretends that Transformer Engine is installed."""
    code = (
        "import json, sys; sys.path.insert(0, '.'); from tests.tools import megatron_parser as p\n"
        "found = {}\n"
        "for row in p.answers():\n"
        "    for name, pair in p.differences(row['fields'], p.of_the_worker(row)).items():\n"
        "        found.setdefault(name.split('.')[1], [row['job'], *pair])\n"
        "import configs\n"
        "theirs = {'--lr': 3e-4, '--optimizer': 'sgd', '--hidden-dropout': 0.1}\n"
        "given = configs.arguments({**p.answers()[0]['flags'], **theirs})\n"
        "own = configs.optimizer(given, 1e-5)\n"
        "print(json.dumps([found, [own.optimizer, own.lr, configs.transformer(given, True).hidden_dropout]]))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    found, persons = json.loads(done.stdout.splitlines()[-1])
    assert persons == ["sgd", 3e-4, 0.1], "of the final confirmation"
    assert found.keys() <= parser.INTENDED.keys(), found
    assert len(parser.INTENDED) <= 4


def test_what_was_asked_is_what_is_exported_today() -> None:
    rows = parser.answers()
    assert len(rows) >= 50
    for row in rows:
        assert parser.flags_now(row) == row["flags"], (row["job"], row["knobs"])


def test_megatron_lm_pads_every_tokenizer_to_the_vocabulary_that_is_measured() -> None:
    """Its own arithmetic on our flags (training/tokenizer: _vocab_size_with_padding), recorded."""
    rows = parser.answers()
    assert {int(row["flags"]["--tensor-model-parallel-size"]) for row in rows} >= {1, 2, 4}
    for row in rows:
        assert {*row["vocab"]} == {parser.job(row["job"]).model.vocab}, (row["job"], row["knobs"])


@pytest.mark.skipif("MEGATRON_LM" not in os.environ, reason="MEGATRON_LM names no checkout of Megatron-LM core_v0.16.1")
def test_megatron_lm_still_says_so() -> None:
    rows = parser.answers()
    command = [sys.executable, parser.__file__, "--ask", os.environ["MEGATRON_LM"]]
    asked = json.dumps([{k: v for k, v in row.items() if k not in ("fields", "vocab")} for row in rows])
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    assert [(row["fields"], row["vocab"]) for row in json.loads(done.stdout)] == [
        (row["fields"], row["vocab"]) for row in rows
    ]
