"""What exports write in YAML is what a reader of YAML gets, whatever the characters."""

import pytest
import yaml

from autoscout.deploy import rendering
from autoscout.job.yaml_text import emitted
from autoscout.targets import spread
from autoscout.targets.command import writing
from autoscout.targets.launch import Launch

TEXTS = ("plain", "ü → ✓", "𝄞 beyond U+FFFF 😀", 'a "b" \\ud83d #: - {x}', "two\nlines\ttab", "null", "1e3", "")


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back(text: str):
    assert yaml.safe_load(f"key: {emitted(text)}") == {"key": text}
    assert yaml.safe_load(f"key: {emitted([text, 1, True])}") == {"key": [text, 1, True]}
    assert "\n" not in emitted(text)


def test_every_yaml_export_has_what_was_given():
    """Kubernetes and JobSet manifests held lone surrogates, which its readers refuse."""
    text = TEXTS[2]
    launch = Launch(
        job="j", name="n", evidence="", program=["python", "x.py", text], arguments={"--name": text},
        environment={"NAME": text}, devices=[1], files={"a.txt": text},
    )  # fmt: skip
    for made in (rendering.yaml(launch), writing.yaml(launch)):
        found = yaml.safe_load(made)
        assert found["environment"] == {"NAME": text}
        assert found["files"] == {"a.txt": text}
    manifest = spread.jobset(launch)
    assert "\\ud" not in manifest
    script = "\n".join(["pod:", *spread.pod(launch, f"echo '{text}'", 1)])
    assert f"echo '{text}'" in str(yaml.safe_load(script))
