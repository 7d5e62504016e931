"""What a line of Megatron-LM says beside the knobs of its preset decides which layouts start."""

import re
import shlex

import pytest

from autoscout.machine.starting import job_file
from autoscout.simulate.encode import of_configurations
from autoscout.space.explain import explain
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Configuration

LINE = (
    "torchrun --nproc-per-node 8 {script} --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 4096 --vocab-size 32000 --micro-batch-size 1 --tensor-model-parallel-size 2 --sequence-parallel"
)


def space_of(folder, more: str, script: str = "pretrain_gpt.py"):
    line = shlex.split(f"{LINE.format(script=script)} {more}")
    (folder / "job.toml").write_text(job_file(line, folder)[0].replace("'cpu'", "'h100'").replace('"cpu"', '"h100"'))
    job = load_job(folder / "job.toml")
    return job, JobSpace.of_job(job)


def broken(space, **knobs) -> list[str]:
    return [each.sentence for each in explain(space, knobs, space.reference).violations]


def test_the_present_launch_is_held_for_what_it_is(tmp_path):
    """With two replicas, not four, the batch of 2 goes; it was replaced by another layout."""
    _, space = space_of(tmp_path, "--global-batch-size 2 --context-parallel-size 2")
    assert (space.reference.knobs["tp"], space.reference.knobs["mbs"]) == (2, 1)
    assert broken(space, tp=8)  # 8 × 2 ranks for 8 devices


@pytest.mark.parametrize(
    ("more", "knobs", "said"),
    [
        ("--num-experts 8 --expert-model-parallel-size 4", {"pp": 4}, "expert parallel ranks"),
        ("--num-experts 8", {"tp": 2, "sp": False}, "needs sequence parallelism"),
        ("--num-experts 8 --expert-model-parallel-size 4", {"tp": 4}, "expert parallel ranks"),
        ("--num-experts 8 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1", {"tp": 4}, ""),
        ("--num-query-groups 4 --group-query-attention", {"tp": 8}, ""),
        (
            "--num-attention-heads 24 --hidden-size 3072 --group-query-attention --num-query-groups 6",
            {"tp": 4},
            "key/value heads",
        ),
        ("--num-layers-per-virtual-pipeline-stage 4 --pipeline-model-parallel-size 2", {"pp": 1}, "interleaved"),
        (
            "--decoder-first-pipeline-num-layers 14 --pipeline-model-parallel-size 2",
            {"pp": 4},
            "the line sets the layers",
        ),
        (
            "--decoder-last-pipeline-num-layers 14 --pipeline-model-parallel-size 2",
            {"pp": 4},
            "the line sets the layers",
        ),
        (
            "--pipeline-model-parallel-layout Et*16|t*16L --pipeline-model-parallel-size 2",
            {"pp": 4},
            "the line sets the layers",
        ),
        (
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
            {"overlap_grad": False},
            "needs --overlap-grad-reduce",
        ),
        (
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
            {"distopt": False},
            "needs --overlap-grad-reduce",
        ),
        ("--tp-comm-overlap", {"sp": False}, "needs sequence parallelism"),
        ("--tp-comm-overlap", {"tp": 1}, "needs sequence parallelism"),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            {"recompute": True},
            "replaces the line's full recomputation",
        ),
        ("--recompute-granularity selective", {"recompute": True}, ""),
        ("--use-distributed-optimizer --use-precision-aware-optimizer", {"distopt": False}, "needs"),
        ("--use-torch-fsdp2", {"distopt": True}, "works neither"),
        ("--use-torch-fsdp2", {"pp": 2}, "works neither"),
        ("--optimizer muon", {"overlap_grad": True}, "supports neither"),
        (
            "--num-layers-per-virtual-pipeline-stage 4 --pipeline-model-parallel-size 2",
            {"mbs": 16, "pp": 4, "tp": 1},
            "at least 4 micro batches",
        ),
        (
            "--num-layers-per-virtual-pipeline-stage 4 --pipeline-model-parallel-size 4 --no-overlap-p2p-communication",
            {"pp": 2},
            "more than 2 stages",
        ),
    ],
)
def test_layouts_that_would_not_start_are_none(tmp_path, more, knobs, said):
    _, space = space_of(tmp_path, f"--global-batch-size 64 {shlex.join(more.split())}")
    assert not broken(space)
    assert (said in " ".join(broken(space, **knobs))) if said else not broken(space, **knobs)


def test_chunks_of_the_line_are_those_of_every_layout(tmp_path):
    """Other numbers of stages were predicted without interleaving, though the line's flag stays."""
    of_line = "--global-batch-size 64 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4"
    _, space = space_of(tmp_path, of_line)
    rows = [Configuration({**space.reference.knobs, "pp": pp}) for pp in (4, 2)]
    assert of_configurations(space, rows)["vpp"].tolist() == [2, 4]


def test_a_line_without_its_batch_keeps_today_s(tmp_path):
    """Larger micro batches made larger steps, and the smallest seemed the fastest."""
    job, space = space_of(tmp_path, "")
    assert job.traffic.global_batch == 4
    words = target_of(job).launch(job, space.reference).program
    assert words[words.index("--global-batch-size") + 1] == "4"


def test_a_fork_s_script_is_known_by_its_flags(tmp_path):
    job, _ = space_of(tmp_path, "--global-batch-size 64", "pretrain_llama.py")
    assert job.launch.script == "megatron-lm"


@pytest.mark.parametrize(
    "more",
    [
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
        "--num-layers-per-virtual-pipeline-stage 4",
        "--num-virtual-stages-per-pipeline-rank 2 --decoder-first-pipeline-num-layers 6 "
        "--decoder-last-pipeline-num-layers 8",
    ],
)
def test_a_present_launch_whose_stages_are_uneven_is_held_for_what_it_is(tmp_path, more):
    """Nothing was feasible."""
    _, space = space_of(tmp_path, f"--global-batch-size 64 --num-layers 30 --pipeline-model-parallel-size 4 {more}")
    assert space.reference.knobs["pp"] == 4
    assert not broken(space)


def test_a_knob_of_one_s_own_says_what_the_line_would(tmp_path):
    """A job with cp as its own knob was refused."""
    space_of(tmp_path, "--global-batch-size 64 --context-parallel-size 1")
    own = "\n[[space.knob]]\nname = 'cp'\nvalues = [1, 2, 4]\nsets = '--context-parallel-size'\n"
    (tmp_path / "job.toml").write_text((tmp_path / "job.toml").read_text() + own)
    space = JobSpace.of_job(load_job(tmp_path / "job.toml"))
    assert broken(space, tp=8, cp=2)
    assert not broken(space, tp=4, cp=2)


def test_a_line_with_an_open_quote_is_refused_in_a_sentence(tmp_path):
    from kb.records import AutoscoutError

    space_of(tmp_path, "--global-batch-size 64")
    text = (tmp_path / "job.toml").read_text()
    (tmp_path / "job.toml").write_text(text.replace('current = "', "command = \"echo don't; "))
    with pytest.raises(AutoscoutError, match="a quote is opened and never closed"):
        load_job(tmp_path / "job.toml")


def test_a_job_without_a_model_divides_the_lines_layers_all_the_same(tmp_path):
    """Layouts that do not start were tried."""
    line = shlex.split(f"{LINE.format(script='pretrain_gpt.py')} --global-batch-size 64 --num-query-groups 8")
    at = line.index("--vocab-size")
    line[at : at + 2] = []
    line[line.index("32")] = "30"  # layers
    text = job_file(line, tmp_path)[0].replace("'cpu'", "'h100'").replace('"cpu"', '"h100"')
    (tmp_path / "job.toml").write_text(re.sub(r"\[model\].*?\n\n", "", text, flags=re.DOTALL))
    job = load_job(tmp_path / "job.toml")
    space = JobSpace.of_job(job)
    assert job.model.layers == 0
    assert broken(space, pp=4, tp=1) == [s for s in broken(space, pp=4, tp=1) if "30 layers do not divide" in s] != []
    assert not broken(space, pp=2, tp=1)


@pytest.mark.parametrize("flag", ["--tensor-model-parallel-size", "--context-parallel-size", "--num-layers"])
def test_what_decides_a_layout_and_only_a_shell_knows_is_asked_for(tmp_path, flag):
    """tp ended in a ValueError, and two ranks a sequence were taken for one."""
    with pytest.raises(AutoscoutError, match=f"launch.command has {flag} \\$N; replace \\$N with its value"):
        space_of(tmp_path, f"--global-batch-size 64 {flag} '$N'")


def test_a_micro_batch_that_cannot_be_had_with_what_the_line_leaves_out_is_said(tmp_path):
    """2 stood for it in silence: with two stages 4 would be valid, which the line has not."""
    job, space = space_of(tmp_path, "--global-batch-size 8 --micro-batch-size 4")
    assert (space.reference.knobs["tp"], space.reference.knobs["mbs"]) == (2, 2)
    assert any("are not valid here" in note and "mbs=2" in note for note in target_of(job).notes_on_job(job))


def test_a_global_batch_of_a_setting_keeps_the_samples_of_a_micro_batch(tmp_path):
    """Megatron-Bridge's lines were warned of the micro batch that train.global_batch_size divides into. A recipe has a
    global batch, too, which a line may leave as it is."""
    line = "torchrun --nproc-per-node 8 scripts/training/run_recipe.py --recipe r {}train.micro_batch_size=2"
    for more in ("train.global_batch_size=32 ", ""):
        words = line.format(more)
        (tmp_path / "job.toml").write_text(job_file(shlex.split(words), tmp_path)[0])
        job = load_job(tmp_path / "job.toml")
        assert job.launch.script == "megatron-bridge"
        assert not any("may change the number of samples" in note for note in target_of(job).notes_on_job(job))
