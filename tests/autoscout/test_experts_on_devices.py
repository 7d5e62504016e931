"""What a mixture of experts costs beside the products that test_by_hand.py counts: whose rows are aligned, copies of a
token, what hides their journey; and dropout inside fused attention."""

import numpy as np
import pytest
from test_by_hand import COMPUTE, LINKS, about, device, inputs, layer, links

from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.layer import DROPPED, layer_times
from autoscout.simulate.training.stage import NCCL_MULTIPROCESSORS, stage
from autoscout.simulate.validation.training_tables import columns_of

MOE = {"experts": 8, "topk": 2, "expert_ffn": 1024, "ep": 4, "gpus": 4}


@pytest.mark.parametrize("sequence", [2048, 1992])
def test_an_odd_number_of_tokens_of_an_expert_costs_its_weight_gradients_nothing(sequence: int):
    """Forward, both gradients: 1 + 2 times the products. 1.1 times the mean is no whole number of tokens."""
    with_experts, dense = ({**{"seq_len": sequence}, **more} for more in (MOE, {}))
    experts = layer(COMPUTE, **with_experts)
    forward, backward = experts["forward"] - experts["core"], experts["backward"] - 2.5 * experts["core"]
    assert backward == pytest.approx(2 * forward, rel=1e-2)
    plain = layer(COMPUTE, **dense)
    assert plain["backward"] - 2.5 * plain["core"] == pytest.approx(2 * (plain["forward"] - plain["core"]), rel=1e-2)


@pytest.mark.parametrize("dispatcher", ["flex", "hybridep"])
def test_deepep_sends_a_token_once_to_each_rank_of_its_experts(dispatcher: str):
    """4 ranks, 2 experts a token at random: a rank holds one of them with 1 − (3/4)² = 7/16; 3 of 4 are others."""
    once = 4096 * 2048 * 3 * 7 / 16
    assert layer(LINKS, **MOE, dispatcher=dispatcher)["ep"] == about(2 * 1.1 * once / 1e9)
    assert once < 0.75 * 2 * 4096 * 2048  # what the usual exchange sends
    one = {**MOE, "topk": 1}  # nothing to save
    assert layer(LINKS, **one, dispatcher=dispatcher)["ep"] == about(layer(LINKS, **one)["ep"])


def test_between_nodes_it_crosses_once_to_each_node():
    """8 ranks on two nodes; the other node holds one of 2 experts with 1 − 1/4; four ranks share 0.1 GB/s."""
    sent = links(LINKS).all_to_all(np.array([2e9]), np.array([8.0]), np.ones(1), np.array([1e9]), np.array([2.0]))
    assert sent[0] == about(0.75 * 4 / 0.1)


def test_tokens_travel_beside_the_layers_of_another_micro_batch():
    """All but the first and the last one's; the layers pay with the multiprocessors that their kernels take."""
    hw = device(tflops=1.0, link=1e3)
    found = {}
    for on in (0, 1):
        x = inputs(**MOE, overlap_experts=on)
        found[on] = stage(hw, links(hw), x, np.array([8.0]), layer_times(hw, links(hw), x), None)
        batches = float(x.micro_batches[0])
    alone, beside = found[0]["ep"][0], found[1]["ep"][0]
    assert beside == about(alone / batches)
    taken = (alone - beside) * NCCL_MULTIPROCESSORS / hw.multiprocessors
    assert found[1]["compute"][0] == about(found[0]["compute"][0] + taken)


def test_no_more_travels_beside_layers_than_these_take():
    hw = device(tflops=1e9, link=1.0)
    x = inputs(**MOE, overlap_experts=1)
    found = stage(hw, links(hw), x, np.array([8.0]), layer_times(hw, links(hw), x), None)
    plain = inputs(**MOE)
    assert (
        found["ep"][0]
        > 0.9 * stage(hw, links(hw), plain, np.array([8.0]), layer_times(hw, links(hw), plain), None)["ep"][0]
    )


def test_dropout_inside_fused_attention_costs_what_was_published():
    plain, dropped = layer(COMPUTE), layer(COMPUTE, dropout=1)
    assert dropped["core"] == about(plain["core"] / DROPPED[0])
    assert dropped["backward"] - plain["backward"] == about(2.5 * plain["core"] * (1 / DROPPED[1] - 1))


def test_releases_of_megatron_bridge_that_hide_the_exchange():
    row = {
        "model": "Qwen3_30B_a3B",
        "gpu": "GB200",
        "n_gpus": "8",
        "precision": "MXFP8",
        "layers": "48",
        "hidden": "2048",
    }
    versions = ("26.04.01", "26.06", "26.06.01", "26.08")
    rows = [{**row, "framework": f"Megatron-Bridge {version}"} for version in versions]
    rows += [{**rows[-1], "precision": "BF16"}, {**rows[-1], "model": "GPT OSS 120B"}]
    x = complete(columns_of([{**r, "seq_len": "4096", "heads": "32"} for r in rows]))
    assert x.overlap_experts.tolist() == [0, 1, 1, 1, 0, 0]
