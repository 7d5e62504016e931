"""Values put into a file of settings: one place changes, whatever the file's style, or a sentence says why not."""

import pytest
import yaml

from autoscout.job.yaml_text import put

BLOCKS = """# é: settings of a run
tokens:   # a step
    micro_batch_size: 3  # of a rank
    note: |
        of several
        lines
epochs:
stages:
- {name: a, from: 1}
"""
FLOW = """# as JSON, with comments
{
  "micro-batch-size": 4,   # of a rank
  "zero": {"stage": 1, },
  "save": "here",
}
"""


@pytest.mark.parametrize(
    ("text", "path", "value", "changed"),
    [
        (BLOCKS, "tokens.micro_batch_size", 8, "    micro_batch_size: 8  # of a rank"),
        (BLOCKS, "tokens.steps", 5, "    steps: 5"),
        (BLOCKS, "tokens.note", None, "    note: null"),
        (BLOCKS, "epochs", 2, "epochs: 2"),
        (BLOCKS, "epochs.first.is", True, 'epochs: {"first": {"is": true}}'),
        (BLOCKS, "tokens", None, "tokens: null"),
        (BLOCKS, "epochs", "no", 'epochs: "no"'),
        (BLOCKS, "tokens.micro_batch_size", "1e3 of them", '    micro_batch_size: "1e3 of them"  # of a rank'),
        (BLOCKS, "new.deep", "1f1b", "  deep: 1f1b"),
        (FLOW, "micro_batch_size", 8, '  "micro-batch-size": 8,   # of a rank'),
        (FLOW, "zero.stage", 0, '  "zero": {"stage": 0, },'),
        (FLOW, "zero.overlap", True, '  "zero": {"stage": 1, "overlap": true, },'),
        (FLOW, "save", None, '  "save": null,'),
        (FLOW, "zero", None, '  "zero": null,'),
        (FLOW, "load.from", "x", '  "save": "here", "load": {"from": "x"},'),
        ("", "a.b", 1, "  b: 1"),
        ("a: {}\n", "a.b", 1, 'a: {"b": 1}'),
        ("a: 1", "b", 2, "b: 2"),
    ],
)
def test_one_value_changes_and_nothing_else(text, path, value, changed):
    made = put(text, {path: value})
    assert changed in made.splitlines()
    gone = [line for line in text.splitlines() if line not in made.splitlines()]
    assert len(gone) <= (5 if value is None else 1), "comments and order stay"
    found = yaml.safe_load(made)
    for key in path.split("."):
        found = found[key if key in found else key.replace("_", "-")]
    assert found == value


def test_several_values_at_once():
    made = put(FLOW, {"micro_batch_size": 1, "accumulation": 16, "zero.stage": 2})
    assert yaml.safe_load(made) == {"micro-batch-size": 1, "zero": {"stage": 2}, "save": "here", "accumulation": 16}


@pytest.mark.parametrize(
    ("text", "path", "sentence"),
    [
        ("a: &x 1\nb: *x\n", "b", r"b is a YAML alias \(\*name\); replace it with the value"),
        ("a: &x {c: 1}\nb: *x\n", "a.c", r"the YAML value a.c is shared by several places \(an anchor, &name\)"),
        ("a: &x 1\nb: *x\n", "a", r"the YAML value a is shared by several places \(an anchor, &name\)"),
        ("a: 1\n", "a.b", "a.b cannot be set, because a is a value without keys"),
        ("- a\n", "a", "its top level is a list or a single value, but must have keys"),
        ("a: [1\n", "a", "it is not YAML"),
    ],
)
def test_what_cannot_be_put_is_a_sentence(text, path, sentence):
    with pytest.raises(ValueError, match=sentence):
        put(text, {path: 2})


@pytest.mark.parametrize(
    ("text", "path", "made"),
    [
        ("a: !ENV x\nb: 1\n", "b", "a: !ENV x\nb: 2\n"),
        ("a: !ENV x\nb: 1\n", "a", "a: 2\nb: 1\n"),
        ("a: !ENV &x b\n", "a", "a: &x 2\n"),
        ("a: !of {}\n", "a.b", 'a: !of {"b": 2}\n'),
        ("a: &x 1 # b\n", "a", "a: &x 2 # b\n"),
        ("a: &x\n  b: 1\n", "a", "a: &x 2\n"),
        ("a: 1\n---\nb: 1\n", "a", "a: 2\n---\nb: 1\n"),
        ("a: 1\n---\nb: 1\n", "b", "a: 1\n---\nb: 2\n"),
        ("---\n---\na: 1\n", "b", "---\n---\na: 1\nb: 2\n"),
        ("a-b: 1\na_b: 1\n", "a_b", "a-b: 1\na_b: 2\n"),
        ("a_b: 1\na-b: 1\n", "a-b", "a_b: 1\na-b: 2\n"),
        ("a: 1\na: 1\n", "a", "a: 1\na: 2\n"),
    ],
)
def test_what_others_write_stays(text, path, made):
    """Tags of one's own, anchors, several documents, keys that are alike, and one that is said twice: the last
    counts."""
    assert put(text, {path: 2}) == made


def test_an_anchor_stays_for_what_follows_it():
    """The value went with its anchor, and the next could not be put: a traceback."""
    with pytest.raises(ValueError, match="several places"):
        put("a: &x 1\nb: 1\nc: *x\n", {"a": 2, "b": 3})
