"""`init --target megatron`: a job of the line of pretrain_gpt.py that a person launches; and of a model's name."""

import json
import shlex
import tomllib
from pathlib import Path

import msgspec
import pytest
import verbs

from autoscout.machine.starting import job_file
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.megatron import arguments
from autoscout.targets.target import target_of
from kb.model_shape import shape
from kb.records import AutoscoutError, Configuration, SpaceLimits

FLAGS = """--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
--num-query-groups 8 --num-experts 8 --moe-router-topk 2 --disable-bias-linear --swiglu --normalization RMSNorm
--position-embedding-type rope --untie-embeddings-and-output-weights --tokenizer-type Llama2Tokenizer --seq-length 4096
--micro-batch-size 1 --global-batch-size 256 --bf16 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4
--expert-model-parallel-size 8 --use-distributed-optimizer --sequence-parallel --overlap-grad-reduce
--overlap-param-gather --moe-token-dispatcher-type alltoall --data-path /data/text""".replace("\n", " ")
RANKS = "--nproc_per_node 8 --nnodes 4 --node_rank $SLURM_NODEID --master_addr $HEAD --master_port 6000"


def begun(line: str, folder: Path) -> tuple[dict, list[str]]:
    text, notes = job_file(shlex.split(line), folder, "megatron")
    (folder / "job.toml").write_text(text.replace('"GPU"', '"h100"').replace('"cpu"', '"h100"'))
    return tomllib.loads(text), notes


@pytest.mark.parametrize(
    "line",
    [
        f"srun --gpus-per-node=h100:8 --nodes=4 torchrun {RANKS} pretrain_gpt.py {FLAGS}",
        f"srun --gpus-per-node=h100:8 --nodes=4 bash -c 'torchrun {RANKS} pretrain_gpt.py {FLAGS}'",
        f'srun --gpus-per-node=h100:8 --nodes=4 bash -c "cd /opt/M && torchrun {RANKS} /opt/M/pretrain_gpt.py {FLAGS}"',
    ],
)
def test_the_line_is_the_job_and_its_reference(line, tmp_path):
    """It became a job of the script's own seven flags, or of none, and nothing could predict it."""
    made, notes = begun(line, tmp_path)
    assert made["cluster"]["hosts"] == "slurm"
    job = load_job(tmp_path / "job.toml")
    assert job.devices == 32
    assert (job.model.experts, job.model.kv_heads, job.model.vocab, job.model.tied) == (8, 8, 32000, False)
    assert (job.traffic.seq_len, job.traffic.global_batch) == (4096, 256)
    today = {"pp": 4, "tp": 1, "dp": 8, "ep": 8, "mbs": 1, "distopt": True, "overlap_grad": True, "overlap_param": True}
    assert today.items() <= JobSpace.of_job(job).reference.knobs.items()
    assert not [note for note in notes if "$SLURM_NODEID" in note], "how ranks meet is not the line's any more"


@pytest.mark.parametrize(
    "line",
    [
        "bash -c 'export A=1 B=\"two words\"; {}'",
        "srun bash -c 'export A=1; B=\"two words\" {}'",
        "docker run -e A=1 image env 'B=two words' {}",
        "srun --export=ALL,X=1 env A=1 'B=two words' {}",
        "srun bash -c 'export C=$HOME A=1; export B=\"two words\" && {} --data-path $DATA'",
        "srun bash -c 'export C=$HOME A=1; export B=\"two words\" && torchrun --node_rank $R {}'",
    ],
)
def test_variables_that_the_line_sets_before_the_script_stay(line, tmp_path):
    """They went with what starts the script."""
    run = f"pretrain_gpt.py {FLAGS}" if "torchrun" in line else f"torchrun --nproc-per-node 8 pretrain_gpt.py {FLAGS}"
    made, _ = begun(line.format(run), tmp_path)
    assert made["launch"]["environment"] == {"A": "1", "B": "two words"}


def test_what_a_line_of_latent_attention_leaves_out_is_megatron_lms(tmp_path):
    """Its latent became 512 wide: the core's own default, which the script's 32 replaces."""
    latent = "--multi-latent-attention --position-embedding-type rope"
    made, _ = begun(f"torchrun --nproc-per-node 8 pretrain_gpt.py {FLAGS} {latent}", tmp_path)
    assert made["model"]["latent"] == {"kv_lora_rank": 32}
    made, _ = begun(f"torchrun --nproc-per-node 8 pretrain_gpt.py {FLAGS} {latent} --kv-lora-rank 256", tmp_path)
    assert made["model"]["latent"] == {"kv_lora_rank": 256}


@pytest.mark.parametrize("name", ["llama-3.2-3b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_what_is_exported_is_read_back(name, tmp_path):
    job = load_job(f"fixtures/jobs/{name}.toml")
    flags = arguments.flags(job, JobSpace.of_job(job).reference)
    words = [
        w for f, v in flags.items() for w in ([f] if v is True else [f, *map(str, v if isinstance(v, list) else [v])])
    ]
    made, _ = begun(f"torchrun --nproc-per-node 8 pretrain_gpt.py {shlex.join(words)}", tmp_path)
    read = load_job(tmp_path / "job.toml")
    assert shape(read.model) == msgspec.structs.replace(shape(job.model), preset="")
    assert read.traffic == job.traffic
    assert made["launch"]["current"].startswith("pretrain_gpt.py --num-layers")


def test_what_the_line_leaves_open_is_said(tmp_path):
    small = "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --fp16 --micro-batch-size 2"
    small += " --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16"
    made, notes = begun(f"torchrun --nproc_per_node 8 pretrain_gpt.py {small} --data-path $DATA", tmp_path)
    assert made["model"] == {"layers": 96, "hidden": 12288, "heads": 96, "tied": True, "vocab": 51200}
    said = " | ".join(notes)
    for part in (
        "bf16 is used in place of",
        "50257 tokens are assumed",
        "is 128, but the line starts 8 ranks",
        "write the samples per step",
        "$DATA",
    ):
        assert part in said
    with pytest.raises(AutoscoutError, match="does not give --hidden-size, --num-attention-heads"):
        begun("torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2", tmp_path)
    with pytest.raises(AutoscoutError, match="is not a launch line of megatron"):
        begun("torchrun --nproc_per_node 8 train.py", tmp_path)


WORDS = '{"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 1}, {"id": 130}]}'
PIECES = json.dumps({"model": {"vocab": [["a", -1.5]] * 200}})


@pytest.mark.parametrize(
    ("named", "files", "vocab"),
    [
        ("own", {"config.json": '{"vocab_size": 64000}'}, 64000),
        ("own", {"config.json": "{", "tokenizer.json": WORDS}, 128),
        ("own", {"tokenizer.json": PIECES}, 256),
        ("meta-llama/Llama-3.1-8B-Instruct", {}, 128256),
        ("own/tokenizer.model", {}, 32000),
    ],
    ids=["config", "tokenizer", "pieces", "known", "unknown"],
)
def test_the_vocabulary_is_that_of_the_lines_tokenizer(named, files, vocab, tmp_path):
    """50,257 tokens were guessed with the model's folder beside the script."""
    (tmp_path / "own").mkdir()
    for name, text in files.items():
        (tmp_path / "own" / name).write_text(text)
    line = f"{FLAGS} --tokenizer-type HuggingFaceTokenizer --tokenizer-model {named}"
    made, notes = begun(f"torchrun --nproc-per-node 8 pretrain_gpt.py {line}", tmp_path)
    assert made["model"]["vocab"] == vocab
    assert any("tokens are assumed" in note for note in notes) == (not files and vocab == 32000)


def test_what_a_job_has_to_allow_is_allowed_where_the_line_has_it(tmp_path):
    """A line that trains in FP8 was taken for one in bf16, which needs more memory than there is."""
    made, _ = begun(
        f"srun --gpus-per-node=h100:8 --nodes=4 python pretrain_gpt.py {FLAGS} --fp8-format hybrid", tmp_path
    )
    assert made["space"] == {"allow": ["fp8"], "fix": {"fp8": "delayed"}}
    job = load_job(tmp_path / "job.toml")
    assert JobSpace.of_job(job).reference.knobs["fp8"] == "delayed"
    plain = msgspec.structs.replace(job, space=SpaceLimits())
    assert "fp8 in launch.current is ignored" in " ".join(target_of(plain).notes_on_job(plain))


def test_a_line_that_fine_tunes_is_no_job_of_pretraining(tmp_path):
    """Its micro batches of 2 and 4 were tried, which `--sft` refuses, and no sample was shorter than the sequence."""
    made, notes = begun(
        f"srun --gpus-per-node=h100:8 --nodes=1 python pretrain_gpt.py {FLAGS} --sft --data-path mine.jsonl", tmp_path
    )
    assert made["task"] == "finetune"
    assert any(note.startswith("traffic.lengths: write the lengths of your conversations") for note in notes)
    with pytest.raises(AutoscoutError, match=r"needs traffic\.lengths"):
        load_job(tmp_path / "job.toml")
    text = (tmp_path / "job.toml").read_text()
    (tmp_path / "job.toml").write_text(text.replace("[traffic]\n", "[traffic]\nlengths = [50, 300, 2000]\n"))
    job = load_job(tmp_path / "job.toml")
    assert JobSpace.of_job(job).reference.knobs["mbs"] == 1
    assert not any("--data-path" in note for note in target_of(job).notes_on_job(job))
    alone = JobSpace.of_job(job).reference
    together = Configuration({**alone.knobs, "packing": True})
    for configuration, file in ((alone, "mine.jsonl"), (together, "packed.jsonl")):
        launch = target_of(job).launch(job, configuration)
        assert launch.arguments["--data-path"] == file, "a batch of 14 was of theirs, a conversation a line"
        assert any("packed.jsonl" in text for text in launch.missing) == (file == "packed.jsonl")
        assert not any("samples.jsonl" in text for text in launch.missing)
    pretrains = msgspec.structs.replace(job, task="pretrain", traffic=msgspec.structs.replace(job.traffic, lengths=[]))
    assert any("set task = 'finetune'" in problem for problem in target_of(job).problems(pretrains))


def test_one_chunk_a_stage_is_no_interleaving(tmp_path):
    """It became two, with a note that the line cannot be had as it is."""
    for said in ("--num-layers-per-virtual-pipeline-stage 8", "--num-virtual-stages-per-pipeline-rank 1"):
        line = f"{FLAGS} --pipeline-model-parallel-size 4 {said}"
        begun(f"srun --gpus-per-node=h100:8 --nodes=4 python pretrain_gpt.py {line}", tmp_path)
        job = load_job(tmp_path / "job.toml")
        assert JobSpace.of_job(job).reference.knobs["vpp"] == 1
        assert target_of(job).notes_on_job(job) == []


def test_a_gated_model_is_as_wide_as_megatron_lm_makes_it(tmp_path):
    """It was half as wide again, and predicted so."""
    given = FLAGS.replace("--ffn-hidden-size 14336 ", "").replace("--num-experts 8 --moe-router-topk 2 ", "")
    made, _ = begun(f"torchrun --nproc-per-node 8 pretrain_gpt.py {given}", tmp_path)
    assert made["model"]["ffn"] == 10880, "of hidden 4096"


def test_a_flag_that_says_its_default_asks_for_nothing(tmp_path):
    """CUDA graphs were allowed to a line that says to have none."""
    off = "--cuda-graph-impl none --num-distributed-optimizer-instances 1"
    made, _ = begun(f"torchrun --nproc-per-node 8 pretrain_gpt.py {FLAGS} {off}", tmp_path)
    assert "space" not in made
    job = load_job(tmp_path / "job.toml")
    assert "is ignored" not in " ".join(target_of(job).notes_on_job(job))


def test_words_of_a_shell_stay_together(tmp_path):
    """A script with its folder was not found in them, and a quoted path fell apart."""
    line = [
        "bash",
        "-c",
        f"torchrun --nproc-per-node 8 /opt/M/pretrain_gpt.py {FLAGS} --load '/my models/a' 2>&1 | tee log",
    ]
    text, notes = job_file(line, tmp_path, "megatron")
    current = tomllib.loads(text)["launch"]["current"]
    assert shlex.split(current)[-2:] == ["--load", "/my models/a"]
    assert not [note for note in notes if "command_prefix" in note], "the shell is no place of its own"


def test_init_says_that_there_is_another_way(tmp_path):
    line = ["torchrun", "--nproc_per_node", "8", "pretrain_gpt.py", *shlex.split(FLAGS)]
    done = verbs.run("init", "--json", "--", *line)
    assert "`autoscout init --target megatron` tunes all of megatron's knobs" in done.stderr
    done = verbs.run("init", "--target", "megatron", "--", *line)
    assert 'target = "megatron"' in done.stdout
    assert "--target megatron" not in done.stderr


@pytest.mark.parametrize("name", ["llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"])
def test_a_models_name_is_a_model(name, tmp_path):
    """It became a job that runs the command `llama-3.1-8b`."""
    made = tomllib.loads(job_file([name], tmp_path)[0])
    assert (made["target"], made["model"]["preset"]) == ("megatron", "llama-3.1-8b")
    with pytest.raises(
        AutoscoutError, match=r"or a model's name: 'llama-3.1-9b' is unknown; did you mean 'llama-3.1-8b'"
    ):
        job_file(["llama-3.1-9b"], tmp_path)
    with pytest.raises(AutoscoutError, match="is a model; for a job of vllm, give the command that starts the engine"):
        job_file([name], tmp_path, "vllm")


def test_a_target_that_a_model_cannot_have_is_no_job_of_megatron(tmp_path):
    """`--target deepspeed` of a config.json made a job of Megatron without a word, as did a word that is no target."""
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = str(tmp_path / "config.json")
    assert tomllib.loads(job_file([given], tmp_path, "megatron")[0])["target"] == "megatron"
    with pytest.raises(AutoscoutError, match="for a job of deepspeed, give the command that starts the engine"):
        job_file([given], tmp_path, "deepspeed")
    with pytest.raises(AutoscoutError, match="--target 'megatorn' is unknown; did you mean 'megatron'"):
        job_file([given], tmp_path, "megatorn")


DENSE = "torchrun --nproc_per_node 8 {} --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --bf16"


def test_what_only_a_shell_knows_is_no_number(tmp_path):
    """1,024 tokens and one sample a rank were taken for it, and predicted, without a word."""
    flags = "--seq-length $S --micro-batch-size $B --global-batch-size $G --ffn-hidden-size $F"
    made, notes = begun(f"{DENSE.format('pretrain_gpt.py')} {flags}", tmp_path)
    assert "global_batch" not in made["traffic"]
    for begins in (
        "traffic.seq_len: 1024 tokens are assumed, because the launch line gives no number for --seq-length",
        "traffic.global_batch: write the samples per step, because the launch line does not give them",
        "model.ffn: write the value of the line's --ffn-hidden-size $F",
    ):
        assert any(note.startswith(begins) for note in notes), begins
    (tmp_path / "job.toml").write_text(
        (tmp_path / "job.toml").read_text().replace("seq_len =", "global_batch = 64\nseq_len =")
    )
    with pytest.raises(AutoscoutError, match=r"launch.current has --micro-batch-size \$B; write the value"):
        load_job(tmp_path / "job.toml")


def test_a_script_that_only_a_shell_finds_is_exported_with_its_flags(tmp_path):
    """Its quote was left over: "No closing quotation"."""
    begun(f"{DENSE.format('$M/pretrain_gpt.py')} --seq-length 1024 --global-batch-size 64 --lr 1e-4", tmp_path)
    job = load_job(tmp_path / "job.toml")
    assert target_of(job).launch(job, JobSpace.of_job(job).reference).arguments["--lr"] == 1e-4


def test_one_expert_without_a_router_is_none(tmp_path):
    """As Megatron-DeepSpeed's scripts say it of a dense model."""
    begun(f"{DENSE.format('pretrain_gpt.py')} --seq-length 1024 --global-batch-size 64 --num-experts 1", tmp_path)
    assert load_job(tmp_path / "job.toml").model.experts == 0


def test_megatron_deepspeeds_line_is_not_megatron_cores(tmp_path):
    """It was predicted as if Megatron-core trained it, and handed back flags that its script has not."""
    line = f"{DENSE.format('pretrain_gpt.py')} --seq-length 1024 --global-batch-size 64 --deepspeed --zero-stage 1"
    with pytest.raises(AutoscoutError, match="trains with DeepSpeed"):
        begun(line, tmp_path)
    assert not any("--target megatron" in note for note in job_file(shlex.split(line), tmp_path)[1])


def test_a_vocabulary_that_is_padded_as_the_line_has_it_is_no_other_launch(tmp_path):
    more = "--seq-length 1024 --global-batch-size 64 --vocab-size 50000 --make-vocab-size-divisible-by 128"
    begun(f"{DENSE.format('pretrain_gpt.py')} {more}", tmp_path)
    job = load_job(tmp_path / "job.toml")
    assert not [note for note in target_of(job).notes_on_job(job) if "not valid" in note]


def test_the_layout_that_stands_for_a_line_is_said(tmp_path):
    """8 samples of 4 do not go to 8 replicas: cp = 4 stood for it in silence."""
    line = f"{DENSE.format('pretrain_gpt.py')} --seq-length 1024 --global-batch-size 8 --micro-batch-size 4"
    begun(line, tmp_path)
    job = load_job(tmp_path / "job.toml")
    (note,) = [note for note in target_of(job).notes_on_job(job) if "not valid" in note]
    assert "with --context-parallel-size 4" in note
