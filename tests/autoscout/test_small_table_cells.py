"""Cells of tables that are empty, or 0, where another column leads one to expect a number."""

import numpy as np
import pytest

from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.training_tables import columns_of, of_row

SHAPE = {"layers": 32, "hidden": 4096, "heads": 32, "seq_len": 2048, "vocab": 32000}
NAN = float("nan")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("experts", [0, 8])
def test_parameters_beside_an_ffn_of_0_divide_nothing_by_it(experts: int):
    x = complete({**SHAPE, "ffn": 0.0, "params": 7e9, "experts": experts})
    assert (x.gated.tolist(), x.ffn.tolist()) == ([0.0], [4.0 * 4096])


@pytest.mark.filterwarnings("error")
def test_rows_without_parameters_are_gated_by_their_width_beside_rows_with_them():
    """Of Llama-2-7B's and a plain shape: 6.74e9 parameters need three matrices of 11,008, 6.64e9 two of 16,384."""
    ffn = np.array([11008.0, 11008.0, 11008.0, 16384.0, 16384.0, 11008.0])
    params = np.array([6.74e9, NAN, 0.0, 6.64e9, NAN, 5.2e9])
    assert complete({**SHAPE, "ffn": ffn, "params": params}).gated.tolist() == [1, 1, 1, 0, 0, 0]


def test_a_shape_without_a_known_name_is_gated_where_its_width_says_so():
    row = {**SHAPE, "ffn": 11008, "n_gpus": 8, "global_batch": 64, "gpu": "A100-SXM4-80GB", "model": "house-7b"}
    assert complete(columns_of([row])).gated.tolist() == [1.0]
    assert complete(columns_of([{**row, "ffn": 16384}])).gated.tolist() == [0.0]


def test_trays_of_a_rack_are_no_islands_and_larger_racks_do_not_jump():
    job = {**SHAPE, "gpu": "gb200", "tp": 4, "distopt": 1, "mbs": 1}
    gpus = np.array([64.0, 256.0, 512.0, 1024.0])
    by_trays = Training().predict({**job, "gpus": gpus, "global_batch": 4 * gpus, "per_node": 4}).value
    assert by_trays == pytest.approx(Training().predict({**job, "gpus": gpus, "global_batch": 4 * gpus}).value)
    assert by_trays[-1] / by_trays[-2] < 1.05


def test_heads_of_no_multiple_of_8_are_padded():
    narrow = {**SHAPE, "hidden": 4100, "heads": 50, "gpu": "a100", "gpus": 8, "global_batch": 64}  # 82 wide
    even = {**narrow, "hidden": 4000}  # 80 wide
    odd, usual = (Training().predict({**one, "attention": "flash2"}).parts["compute"][0] for one in (narrow, even))
    assert odd / usual > (4100 / 4000) ** 2 * 1.02


@pytest.mark.parametrize(("run", "fused"), [("FSDP", False), ("FSDP+compile", True), ("FSDP+compile+Float8", True)])
def test_torchtitan_fuses_only_what_it_compiles(run: str, fused: bool):
    x = of_row({**SHAPE, "framework": "torchtitan FSDP2", "other": f"{run} (compile for 2D/3D)"})
    assert ("fused_norm" not in x, "fused_activation" not in x) == (fused, fused)
    assert (
        of_row({**SHAPE, "framework": "torchtitan FSDP2", "other": "2D (compile for 2D/3D)"}).get("fused_norm") is None
    )
