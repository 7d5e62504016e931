"""Shadows of knobs that came since 0.16, and of modules whose arguments releases call differently."""

import importlib.util
import subprocess
import sys

import pytest
from test_shadow import answers, flags, job

from autoscout.simulate.shadow.traced import Rank
from autoscout.targets.megatron import shadow as shadows

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]
LAYERS, TOKENS, HEADS, GROUPS, SIZE, BYTES = 4, 512 * 16, 8 // 2, 4 // 2, 64, 2


@pytest.fixture(scope="module")
def told() -> dict[str, Rank]:
    of = job(devices=8, layers=LAYERS)
    plain = {**flags(of, tp=2, pp=1, dp=4, mbs=16, sp=True), "rank": 0}
    sent = {**flags(of, tp=2, pp=1, dp=4, mbs=16, sp=True, offload_acts="core_attn"), "rank": 0}
    fused = {**plain, "arguments": {**plain["arguments"], "--use-transformer-engine-op-fuser": True}}
    found = answers({"plain": plain, "sent": sent, "fused": fused})
    assert [rank.verdict for rank in found.values()] == ["starts"] * 3, found
    return found


def test_queries_keys_and_values_of_all_layers_but_the_last_leave_the_device(told: dict[str, Rank]) -> None:
    """The last comes back at once and is not sent. Outputs are held by the projection, too, and stay."""
    layer = TOKENS * SIZE * (HEADS + 2 * GROUPS) * BYTES
    assert told["plain"].at_peak["activations"] - told["sent"].at_peak["activations"] == (LAYERS - 1) * layer


def test_operations_of_the_fuser_keep_in_16_bits_what_modules_keep(told: dict[str, Rank]) -> None:
    def ran(name: str) -> bool:
        return any(kernel[1] == "fused activation" for kernel in told[name].kernels)

    assert (ran("plain"), ran("fused")) == (False, True)
    assert told["fused"].at_peak == told["plain"].at_peak


def test_norms_are_made_by_either_name_of_their_size() -> None:
    """Of megatron-core 0.17 and later no shadow of a last stage started."""
    names = "import stand_in_modules as m; print(m.RMSNorm(hidden_size=8).weight.shape == "
    script = names + "m.RMSNorm(normalized_shape=8).weight.shape)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=shadows.RANK.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
