"""`init` of words and configs that nobody wishes for."""

import json
import tomllib

import pytest

from autoscout.job.hf_config import shape_of
from autoscout.line.launch_line import Line
from autoscout.line.manifests import container_in
from autoscout.machine.starting import job_file
from autoscout.targets.vllm.settings_file import with_file
from kb.records import AutoscoutError

SHAPE = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 9}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("it's", '"it\'s" is not a shell command line: a quote is opened and never closed'),  # an internal error
        ("", "'' is neither a file nor a program on this machine"),
        ("no-such-file", "'no-such-file' is neither a file nor a program on this machine"),
        ("x" * 300, "is neither a file nor a program on this machine"),
        ("/proc", "'/proc' is a folder without a config.json"),
    ],
)
def test_a_word_that_launches_nothing_makes_no_job(tmp_path, line, sentence):
    with pytest.raises(AutoscoutError, match=sentence) as refused:
        job_file([line], tmp_path)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("in_a_script", [False, True])
def test_a_line_that_cannot_be_read_to_its_end_says_how_far_it_was(tmp_path, in_a_script):
    """Of a script it was said that no line launches anything."""
    line, script = "torchrun --nproc-per-node 2 train.py --name 'open --bf16\n", tmp_path / "run.sh"
    script.write_text(f"cd /tmp\n{line}")
    sentence = "a quote is opened and never closed after 'torchrun --nproc-per-node 2 train.py --name'"
    with pytest.raises(AutoscoutError, match=sentence):
        job_file([str(script) if in_a_script else line], tmp_path)


@pytest.mark.parametrize("odd", [None, "x", -5, True, [], [1]])
@pytest.mark.parametrize("field", ["max_position_embeddings", "text_config", "rope_scaling", "rope_parameters"])
def test_a_config_with_an_odd_field_beside_the_shape_is_read(tmp_path, field, odd):
    """null, too, was an internal error."""
    (tmp_path / "config.json").write_text(json.dumps({**SHAPE, field: odd}))
    made = tomllib.loads(job_file([str(tmp_path / "config.json")], tmp_path)[0])
    assert (made["model"]["layers"], made["traffic"]["seq_len"]) == (2, 4096)
    assert shape_of(tmp_path / "config.json", "serve")["layers"] == 2


def test_a_folder_with_a_config_is_its_config(tmp_path):
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(SHAPE))
    assert job_file([str(config.parent)], tmp_path) == job_file([str(config)], tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("image: x\ncommand: it's", "cannot be read (No closing quotation)"),
        (
            "image: x\ncommand: 5\nenv: 7",
            "no container has a command or args; give the command: autoscout init -- COMMAND",
        ),
        ("image: x\nargs: [serve]\nenv: [{value: 1}]", ""),
        ("image: 2020-13-45", "cannot be read (month must be in 1..12)"),
        ("a: &a {b: *a}", "the file is nested too deeply"),
        ("[" * 5000, "the file is nested too deeply"),
    ],
)
def test_an_odd_manifest_is_a_sentence(text, sentence):
    """Each was an internal error."""
    pytest.importorskip("yaml")
    if not sentence:
        assert container_in(text, "pod.yaml").words == ["serve"]
        return
    with pytest.raises(AutoscoutError) as refused:
        container_in(text, "pod.yaml")
    assert str(refused.value) == f"pod.yaml: {sentence}"


@pytest.mark.parametrize("text", ["[" * 5000, "a: &a {b: *a}", "1", "'"])
def test_an_odd_file_of_settings_is_noted(tmp_path, text):
    pytest.importorskip("yaml")
    (tmp_path / "serve.yaml").write_text(text)
    line, notes = Line(("vllm", "serve", "m", "--config", str(tmp_path / "serve.yaml"))), []
    assert with_file(line, notes) == line
    assert "as flags; the file cannot be read here" in notes[0]
