"""DeepSpeed autotuning's configuration search, behaviour by behaviour (docs/deepspeed.md numbers them): 2 to 10."""

import json
import math

import pytest
from ds_configs import CONFIG, OPTIMIZER

from autoscout.targets.deepspeed import config_space, ds_config
from autoscout.targets.deepspeed.arguments import rendered_config
from autoscout.targets.deepspeed.autotuning import settings
from autoscout.targets.deepspeed.tuning_space import (
    DEFAULT_SPACES,
    canonical_name,
    filled,
    refused,
    replaced,
    template,
)
from autoscout.targets.jobs import JobSpace
from kb.records import AutoscoutError


def test_02_defaults_are_its_codes_but_overwrite():
    found = settings({})
    assert (found.enabled, found.fast, found.overwrite) == (False, True, False)  # theirs overwrites
    assert (found.results_dir, found.exps_dir) == ("autotuning_results", "autotuning_exps")
    assert (found.start_profile_step, found.end_profile_step, found.metric) == (3, 5, "throughput")
    assert (found.tuner_early_stopping, found.tuner_num_trials, found.num_tuning_micro_batch_sizes) == (5, 50, 3)
    assert (found.min_train_micro_batch_size_per_gpu, found.max_train_micro_batch_size_per_gpu) == (1, 1024)
    assert (found.mp_size, found.max_train_batch_size, found.arg_mappings) == (1, None, None)


def test_03_templates_by_stage_and_stage_3_by_hidden_size():
    assert template(0) == {"zero_optimization": {"stage": 0}}
    assert template(1)["zero_optimization"]["reduce_bucket_size"] == 5e8
    sized = template(3, hidden=1000)["zero_optimization"]
    assert sized["reduce_bucket_size"] == 1e6
    assert sized["stage3_prefetch_bucket_size"] == 9e5
    assert sized["stage3_param_persistence_threshold"] == 1e4
    assert template(3)["zero_optimization"]["stage3_prefetch_bucket_size"] == 5e8


def test_04_default_spaces_count_3_27_216_and_432_experiments():
    counts = [math.prod(map(len, DEFAULT_SPACES[stage].values())) for stage in range(4)]
    assert [3 * count for count in counts] == [3, 27, 216, 432]  # three micro batches


def test_05_a_person_overrides_a_list_is_tuned_a_value_pinned_and_null_deletes(place):
    merged = replaced({"a": [1, 2], "b": {"c": [True, False], "d": 1}}, {"a": 3, "b": {"c": None, "e": [4, 5]}})
    assert merged == {"a": 3, "b": {"d": 1, "e": [4, 5]}}
    zero = {"stage": [1, 2], "reduce_bucket_size": 7, "overlap_comm": None}
    asked = {"enabled": True, "fast": False}
    config = {**CONFIG, "zero_optimization": zero, "autotuning": asked}
    space = JobSpace.of_job(place.job(config))
    assert "overlap_comm" not in space.knob
    assert "reduce_bucket" not in space.knob
    assert {"stage", "mbs", "allgather_bucket", "reduce_scatter", "contiguous_gradients"} <= space.knob.keys()
    sent = rendered_config(place.job(config), JobSpace.of_job(place.job(config)).reference)
    assert sent["zero_optimization"]["reduce_bucket_size"] == 7
    assert "overlap_comm" not in sent["zero_optimization"]


@pytest.mark.parametrize(("said", "stages"), [(2, []), ([1, 3], [1, 3]), ("auto", [0, 1, 2, 3]), ("all", [0, 1, 2, 3])])
def test_05_stage_may_be_one_a_list_or_all(place, said, stages):
    job = place.job({**CONFIG, "zero_optimization": {"stage": said}})
    space = JobSpace.of_job(job)
    assert ([*space.knob["stage"].values] if "stage" in space.knob else []) == stages


def test_06_the_optimizers_lists_are_values(place):
    job = place.job()
    knobs = JobSpace.of_job(job).knob
    assert "betas" not in knobs
    assert rendered_config(job, JobSpace.of_job(job).reference)["optimizer"] == OPTIMIZER


def test_07_names_in_templates_are_looked_up_in_lower_case(place):
    sent = filled(
        {"zero": {"stage": "$STAGE", "path": "$NVME_PATH/x", "text": "b$SIZE-$Kind"}, "list": ["$stage", 1]},
        {"stage": 2, "size": 8, "kind": "fast"},
    )
    assert sent == {"zero": {"stage": 2, "path": "$NVME_PATH/x", "text": "b8-fast"}, "list": [2, 1]}
    with pytest.raises(AutoscoutError, match=r"\$SIZES names nothing that is tuned; the tuned names are size"):
        filled({"a": "$SIZES"}, {"size": 1})
    zero = {"stage": 2, "reduce_bucket_size": "$BUCKET", "allgather_bucket_size": "$BUCKET"}
    own = '[space]\nknob = [{ name = "bucket", values = [1000, 2000] }]'
    job = place.job({**CONFIG, "zero_optimization": zero}, own)
    space = JobSpace.of_job(job)
    sizes = set()
    for row in range(len(space.feasible.codes)):
        sent = rendered_config(job, space.feasible.configuration(row))["zero_optimization"]
        assert sent["reduce_bucket_size"] == sent["allgather_bucket_size"]
        sizes.add(sent["reduce_bucket_size"])
    assert sizes == {1000, 2000}


def test_08_no_two_configurations_are_the_same_run(place):
    job = place.job()
    space = JobSpace.of_job(job)
    sent = [
        json.dumps(rendered_config(job, space.feasible.configuration(r)), sort_keys=True)
        for r in range(len(space.feasible.codes))
    ]
    assert len(set(sent)) == len(sent) == 4 + 3 * 8  # stage 0 has no buckets


def test_09_offloading_needs_an_optimizer_of_deepspeeds():
    offload = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    assert "needs one of DeepSpeed's own optimizers" in refused({"zero_optimization": offload})
    assert refused({"zero_optimization": offload, "optimizer": OPTIMIZER}) == ""
    assert "stage 2 cannot offload weights" in refused(
        {"zero_optimization": {"stage": 2, "cpu_offload": True, "cpu_offload_params": True}, "optimizer": OPTIMIZER}
    )
    assert refused({"zero_optimization": {"stage": 2}}) == refused({}) == ""


def test_10_canonical_names():
    zero = {"stage": 2, "allgather_bucket_size": 5e7, "contiguous_gradients": True, "overlap_comm": True}
    zero |= {"reduce_bucket_size": 1e9, "reduce_scatter": True}
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero}
    keys = zero.keys() - {"stage"}
    assert canonical_name(config, keys, "z2_") == "z2_tmbspg2_abs5.0e+07_cgT_ocT_rbs1.0e+09_rsT"  # as theirs, counted
    off = {"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": True}}, "steps": 1}
    assert canonical_name({**off, "train_micro_batch_size_per_gpu": 9001}, []) == "oo_dcpu_pmT_tmbspg9.0e+03"
    assert canonical_name({}, [], "z0_") == "z0_exp"


def test_space_of_a_ds_config_knows_when_a_setting_acts(place):
    space = JobSpace.of_job(place.job())
    assert "reduce_bucket" not in space.reference.knobs  # stage 0
    assert len(space.feasible.codes) == 28
    assert config_space.read_config(space.job)["zero_optimization"]["stage"] == [0, 1, 2, 3]
    assert ds_config.at({"a": {"b": 1}}, "a.b") == 1
