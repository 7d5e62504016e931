"""The space and the targets themselves give the same answers, or the disagreement is in a listed class."""

import importlib.util

import megatron_oracle
import pytest
import vllm_oracle
from agreement import Verdict, classes, confirmed, report

EARLY, DEEP, VLLM = 1000, 24, 60

needs_megatron = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]
needs_vllm = pytest.mark.skipif(
    not vllm_oracle.PYTHON.exists(), reason=f"no {vllm_oracle.PYTHON}; `make .venv-vllm/ready` installs the real vLLM"
)


def check(title: str, verdicts: list[Verdict], listed: dict[str, str]) -> None:
    assert not [v for v in verdicts if v.refused and not v.rules], report(title, verdicts, listed)
    assert not classes(verdicts, listed)[1], report(title, verdicts, listed)
    assert confirmed(verdicts), report(title, verdicts, listed)


class TestMegatron:
    pytestmark = needs_megatron

    @pytest.mark.thorough
    def test_its_groups_and_configuration_classes(self):
        check("early", megatron_oracle.verdicts(EARLY, DEEP)[0], megatron_oracle.EARLY)

    def test_its_model_and_first_step(self):
        check("deep", megatron_oracle.verdicts(EARLY, DEEP)[1], megatron_oracle.DEEP)


@needs_vllm
class TestVllm:
    def test_the_configuration_of_an_engine(self):
        check("vllm", vllm_oracle.verdicts(VLLM), vllm_oracle.LISTED)

    def test_the_names_of_what_is_set_on_gpus(self):
        assert vllm_oracle.gpu_refusals(20) == []
