"""Groups whose communicators may have few of NCCL's channels (max_ctas), as NVIDIA's code for MLPerf sets them. Devices
and the layer are those of test_by_hand.py."""

import msgspec
import numpy as np
from test_by_hand import LINKS, about, device, layer, links, row

from autoscout.simulate.validation.training_tables import of_row

FEW = msgspec.structs.replace(device(link=100.0, between=80.0), channel_gb_s=10.0)  # 20 GB/s a device between nodes


def gathered(group: float, stride: float, channels: float, size: float = 8e9) -> float:
    return float(links(FEW).all_gather(row(size), row(group), row(stride), row(channels))[0])


def test_a_group_inside_a_node_is_as_fast_as_its_channels():
    assert gathered(4, 1, 2) == about(6 / 20)  # three of four parts, over two channels of 10 GB/s
    assert gathered(4, 1, 100) == about(6 / 100)  # the links'
    assert gathered(4, 1, np.inf) == about(6 / 100)
    unknown = msgspec.structs.replace(FEW, channel_gb_s=0.0)
    assert links(unknown).all_gather(row(8e9), row(4), row(1), row(1))[0] == about(6 / 100)


def test_every_channel_leaves_a_node_by_one_card():
    fast = msgspec.structs.replace(FEW, channel_gb_s=1e9)
    sent = [links(fast).all_gather(row(8e9), row(8), row(1), row(channels))[0] for channels in (1, 2, 4, 8, np.inf)]
    assert sent == [about(7 / min(20 * cards, 80)) for cards in (1, 2, 4, 4, 4)]
    # two groups share a node's four cards: more than two channels gain neither anything
    assert gathered(8, 2, 4) == about(7 / 40)


def test_a_ring_of_context_parallel_ranks_with_one_channel():
    """4 ranks of 1024 tokens: keys and values 1 MiB, sent on three times forward, six backward."""
    key = 1024 * 2 * 128 * 2
    slow = msgspec.structs.replace(LINKS, channel_gb_s=0.25)
    found = layer(slow, cp=4, cp_channels=1)
    assert (found["cp"], found["cp_backward"]) == (about(4 * 3 * 2 * key / 1e9), about(4 * 6 * 2 * key / 1e9))
    assert layer(slow, cp=4)["cp"] == about(3 * 2 * key / 1e9)


def test_mlperf_s_pretraining_has_them_and_its_adapters_do_not():
    row = {"gpu": "NVIDIA GB200", "layers": 32, "precision": "fp8", "round": "v5.1"}
    told = of_row(row)
    assert [told[name] for name in ("cp_channels", "dp_channels", "grad_bytes")] == [1, 8, 2]
    assert told["ddp_bucket"] * 2**20 / 4 == 768e6
    assert told["op_fuser"] == 1  # no tensor is split
    assert "op_fuser" not in of_row({**row, "tp": 2})
    assert "ddp_bucket" not in of_row({**row, "layers": 126})
    assert "cp_channels" not in of_row({**row, "lora": 1})
    assert "cp_channels" not in of_row({**row, "gpu": "AMD MI355X"})
