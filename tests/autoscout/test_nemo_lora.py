"""What NeMo's releases change about adapters: casts that other kernels do, adapters inside products, heads exchanged
for tokens, layers replayed as CUDA graphs. Devices and the layer are those of test_by_hand.py."""

import msgspec
import numpy as np
import pytest
from test_by_hand import LINKS, MEMORY, about, inputs, layer, links

from autoscout.simulate.hardware.device import Hardware
from autoscout.simulate.training.layer import layer_times
from autoscout.simulate.training.rank_parameters import adapter_width
from autoscout.simulate.training.stage import stage
from autoscout.simulate.validation.training_tables import of_row
from kb.records import AutoscoutError

TOKENS, HIDDEN, QKV, FFN = 4096, 1024, 1536, 4096
NARROW = msgspec.structs.replace(MEMORY, peak_tflops={"bf16": 1e9, "fp8": 1e9, "fp4": 1e9})


def saved(dtype: str, **columns: float) -> tuple[float, float]:
    """Bytes that a layer with adapters moves less by its operation fuser, forward and backward."""
    given = {"dtype": dtype, "lora": 1, **columns}
    plain, fused = layer(NARROW, **given), layer(NARROW, **given, op_fuser=1)
    return 1e9 * (plain["forward"] - fused["forward"]), 1e9 * (plain["backward"] - fused["backward"])


def test_frozen_weights_need_no_transposed_copy_to_be_cast():
    """8 bits: one byte of four less, over the inputs of four products."""
    trained, frozen = (layer(NARROW, dtype="fp8", lora=on, adapter_width=1e-9) for on in (0, 1))
    assert trained["forward"] - frozen["forward"] == about(TOKENS * (3 * HIDDEN + FFN) / 1e9)


@pytest.mark.parametrize(("dtype", "cast"), [("fp8", 3.0), ("fp4", 2.0)])
def test_an_operation_fuser_casts_in_the_kernels_before(dtype, cast):
    """The norm's output and the gate's, and the gradient that the gate's backward pass makes; of 4 bits the fuser saves
    the pass that looks for the largest value."""
    forward, backward = saved(dtype, adapter_width=1e-9)
    assert (forward, backward) == (about(cast * TOKENS * (HIDDEN + FFN)), about(cast * TOKENS * 2 * FFN))


def test_fused_adapters_scale_and_add_inside_their_products():
    """Over inputs and outputs of 16 bits. Forward: inputs read once less by 8 bits and a mask of bits (0.7), outputs
    neither scaled nor added apart (4); backward 2.4 and 2."""
    wide = saved("bf16", adapter_width=2000)
    assert wide == (about(4.7 * TOKENS * 2000), about(4.4 * TOKENS * 2000))


def test_adapters_without_dropout_scale_their_inner_values():
    """Over inputs and outputs of 16 bits. Forward: inputs are not read, written and masked once more (2.5), outputs
    not scaled (2); backward the same."""
    given = {"dtype": "bf16", "lora": 1, "adapter_width": 2000}
    dropped, plain = layer(NARROW, **given), layer(NARROW, **given, adapter_dropout=0)
    for way in ("forward", "backward"):
        assert 1e9 * (dropped[way] - plain[way]) == about(4.5 * TOKENS * 2000)


def test_adapters_of_every_layer_are_as_wide_as_all_of_them():
    """One for queries, keys and values, one for the output, one for gate and up, one down."""
    few, every = (adapter_width(inputs(lora=1, adapters=on))[0] for on in (0, 1))
    assert few == HIDDEN + QKV + HIDDEN + HIDDEN
    assert every - few == HIDDEN + 2 * FFN + FFN + HIDDEN


def test_heads_exchanged_for_tokens():
    """4 ranks of half a sequence's tokens: 1024 tokens a rank; queries and output are 2 MiB of 16 bits, keys and values
    0.5 MiB each, three of four parts leave; the gradients the same."""
    given = {"cp": 4, "cp_comm": "a2a"}
    query, key = 1024 * 8 * 128 * 2, 1024 * 2 * 128 * 2
    sent = layer(LINKS, **given)
    assert sent["cp"] == about(2 * 0.75 * (query + key) / 1e9)
    assert sent["cp_backward"] == about(sent["cp"])
    assert layer(LINKS, **given, fp8_attention=1)["cp"] == about(sent["cp"] / 2)
    copied = layer(MEMORY, **given)["cp"]  # read and written, three of the queries' size and one of the keys'
    assert copied == about(2 * (3 * query + key) / 1e9)
    ring = layer(LINKS, cp=4)
    assert (ring["cp"], ring["cp_backward"]) == (about(3 * 2 * key / 1e9), about(6 * 2 * key / 1e9))
    assert layer(LINKS, cp_comm="a2a")["cp"] == 0  # nobody to exchange with
    with pytest.raises(AutoscoutError, match="column cp_comm: 'round' is none of"):
        inputs(cp_comm="round")


def of_stage(hw: Hardware, **columns: object) -> dict[str, float]:
    x = inputs(**columns)
    parts = stage(hw, links(hw), x, np.array([8.0]), layer_times(hw, links(hw), x), None)
    return {name: float(seconds[0]) for name, seconds in parts.items()}


def test_nothing_hides_an_exchange_of_heads():
    sent = layer(LINKS, cp=4, cp_comm="a2a")["cp"]
    assert of_stage(LINKS, cp=4, cp_comm="a2a")["cp"] == about(8 * 2 * sent)


def test_a_graph_waits_for_no_host():
    slow = msgspec.structs.replace(MEMORY, host=msgspec.structs.replace(MEMORY.host, forward_us=1e6))
    assert of_stage(slow)["host"] > 1
    assert of_stage(slow, graphs=1)["host"] == 0


def test_mlperfs_adapters_train_as_their_release_does():
    """25.09 fuses where no tensor is split; sequences that are split exchange heads inside graphs."""
    row = {"round": "v5.1", "gpu": "NVIDIA GB200", "lora": "1", "tp": "1", "cp": "8"}
    older = of_row({**row, "framework": "NVIDIA NeMo Framework Release 25.04"})
    assert (older["cp_comm"], older["graphs"], older["fp8_attention"]) == ("a2a", 1, 1)
    assert "op_fuser" not in older
    newer = {**row, "framework": "PyTorch NVIDIA Release 25.04; NeMo Framework NVIDIA Release 25.09"}
    assert of_row(newer)["op_fuser"] == 1
    assert "op_fuser" not in of_row({**newer, "tp": "2"})
    assert "graphs" not in of_row({**newer, "cp": "1"})
    assert "cp_comm" not in of_row({**newer, "gpu": "NVIDIA H200"})
    assert "cp_comm" not in of_row({**newer, "lora": "0"})
