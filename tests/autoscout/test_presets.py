"""Models by name and from what Hugging Face repositories have."""

import json
import sys
from pathlib import Path

import msgspec
import pytest

from autoscout.job.device_names import device_within
from autoscout.job.latent import kept_of_a_token
from autoscout.job.presets import _by_name, models, sizes_of
from autoscout.machine.starting import job_file
from autoscout.targets.jobs import load_job
from kb.records import AutoscoutError, Job, Latent, Model, shape
from kb.sizes import active_parameters, parameters

sys.path.insert(0, "tests/tools")
import models_page

JOB = """
name = "from-config"
target = "megatron"
[model]
from = "config.json"
{more}
[traffic]
seq_len = 2048
global_batch = 64
[cluster]
nodes = [{{ device = "h100", count = 8 }}]
[objective]
minimize = "step_time_s"
"""
QWEN = {  # as Qwen/Qwen3-30B-A3B has it
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}


def loaded(folder: Path, config: object, more: str = "", *changes: tuple[str, str]) -> Job:
    text = JOB.format(more=more)
    for old, new in changes:
        text = text.replace(old, new)
    (folder / "job.toml").write_text(text)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return load_job(folder / "job.toml")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-70b", 70.6),
        ("llama-3.1-405b", 405.9),
        ("qwen3-32b", 32.8),
        ("qwen3-235b-a22b", 235.1),
        ("mixtral-8x7b", 46.7),
        ("gpt-oss-120b", 116.8),
        ("gpt-oss-20b", 20.9),
        ("llama-2-70b", 69.0),
        ("llama-3.2-1b", 1.24),
        ("qwen2.5-0.5b", 0.49),
        ("qwen2.5-14b", 14.7),
        ("qwen2.5-72b", 72.7),
        ("qwen3-0.6b", 0.6),
        ("qwen3-8b", 8.2),
        ("qwen3-14b", 14.8),
    ],
)
def test_presets_are_as_large_as_their_cards_say(name, billions):
    assert parameters(msgspec.convert(models()[name], Model)) / 1e9 == pytest.approx(billions, rel=0.02)


def test_a_config_is_the_model_that_its_preset_is(tmp_path):
    job = loaded(tmp_path, QWEN)
    assert job.model == msgspec.structs.replace(msgspec.convert(models()["qwen3-30b-a3b"], Model), qk_norm=True)
    assert loaded(tmp_path, QWEN, "layers = 24").model.layers == 24


# config.json of published models, as far as it says a shape: written down from memory of the files, not copied.
COMMON = {"tie_word_embeddings": False, "torch_dtype": "bfloat16"}
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_layer_freq": 1}
V2_LITE = COMMON | LATENT | {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": 6, "first_k_dense_replace": 1, "num_hidden_layers": 27, "vocab_size": 102400,
    "q_lora_rank": None,
}  # fmt: skip
V3 = COMMON | LATENT | {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_hidden_layers": 61, "vocab_size": 129280,
    "q_lora_rank": 1536,
}  # fmt: skip
KIMI_K2 = V3 | {
    "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384,
    "first_k_dense_replace": 1, "vocab_size": 163840,
}  # fmt: skip
GLM_AIR = COMMON | {
    "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "head_dim": 128, "num_attention_heads": 96, "num_key_value_heads": 8, "n_routed_experts": 128,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "num_hidden_layers": 46,
    "vocab_size": 151552,
}  # fmt: skip
GLM = GLM_AIR | {
    "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160,
    "first_k_dense_replace": 3, "num_hidden_layers": 92,
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64, "vocab_size": 201088,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS_120B = GPT_OSS_20B | {"num_local_experts": 128, "num_hidden_layers": 36}
SERVED = (
    ('target = "megatron"', 'task = "serve"\ntarget = "vllm"'),
    ("seq_len = 2048\nglobal_batch = 64", "concurrency = 8\ninput_len = 256\noutput_len = 64"),
    ('minimize = "step_time_s"', 'maximize = "output_tokens_per_s"'),
)


def served(folder: Path, config: object) -> Job:
    return loaded(folder, config, "", *SERVED)


@pytest.mark.parametrize(
    ("config", "billions", "active", "ends"),
    [
        (V2_LITE, 15.7, 2.4, 1),
        (V3, 671, 37, 1),
        (KIMI_K2, 1040, 32, 1),
        (GLM, 355, 32, 0),
        (GLM_AIR, 106, 12, 0),
        (QWEN, 30.5, 3.3, 2),
        (GPT_OSS_20B, 20.9, 3.6, 1),
        (GPT_OSS_120B, 116.8, 5.1, 1),
    ],
    ids=["V2-Lite", "V3", "Kimi-K2", "GLM-4.5", "GLM-4.5-Air", "Qwen3-30B", "gpt-oss-20b", "gpt-oss-120b"],
)
def test_a_mixture_has_as_many_parameters_as_its_card_says(tmp_path, config, billions, active, ends):
    """`ends`: which of the embeddings the card's active ones have in them: none, the output's, both."""
    model = served(tmp_path, config).model
    assert parameters(model) / 1e9 == pytest.approx(billions, rel=0.015)
    end = model.vocab * model.hidden
    assert (active_parameters(model) + (ends - 1) * end) / 1e9 == pytest.approx(active, rel=0.025)


def test_shared_experts_and_first_layers_are_read_from_a_config(tmp_path):
    model = loaded(tmp_path, GLM_AIR).model
    assert (model.experts, model.topk, model.expert_ffn, model.gated) == (128, 8, 1408, True)
    assert (model.shared_ffn, model.dense_layers, model.ffn) == (1408, 1, 10944)
    model = served(tmp_path, V2_LITE).model
    assert model.latent == Latent(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    assert (model.shared_ffn, model.dense_layers) == (2 * 1408, 1)
    listed_ = served(tmp_path, QWEN | {"decoder_sparse_step": 1, "mlp_only_layers": [0, 1]}).model
    assert (listed_.shared_ffn, listed_.dense_layers) == (0, 2)
    width = served(tmp_path, QWEN | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632}).model
    assert (width.shared_ffn, width.dense_layers) == (5632, 0)
    assert served(tmp_path, {**GPT_OSS_20B, "num_local_experts": None, "n_shared_experts": 1}).model.shared_ffn == 0


def test_a_training_is_told_of_norms_of_queries_and_biases_of_projections(tmp_path):
    """A server reads them in its folder."""
    glm = {**GLM, "attention_bias": True, "use_qk_norm": True}
    told = [loaded(tmp_path, c).model for c in (glm, {**GLM_AIR, "attention_bias": True}, {**QWEN, "num_experts": 0})]
    assert [(m.qk_norm, m.qkv_bias) for m in told] == [(True, True), (False, True), (True, False)]
    qwen2 = loaded(tmp_path, {**QWEN, "model_type": "qwen2"}).model
    assert (qwen2.qk_norm, qwen2.qkv_bias) == (False, True)
    model = served(tmp_path, glm).model
    assert (model.qk_norm, model.qkv_bias) == (False, False)


def test_latent_attention_is_trained_by_transformer_engine(tmp_path):
    assert loaded(tmp_path, V2_LITE, "[launch]\ntransformer_engine = true").model.latent
    with pytest.raises(AutoscoutError, match=r"needs launch\.transformer_engine"):
        loaded(tmp_path, V2_LITE)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            GPT_OSS_20B,
            "is supported for serving only: training jobs cannot describe sinks and windows of its attention",
        ),
        ({**QWEN, "model_type": "qwen2_moe"}, "training jobs cannot describe the gate of its shared experts"),
        ({**QWEN, "model_type": "glm4"}, "training jobs cannot describe the norms after its attention"),
    ],
)
def test_what_no_launch_of_a_training_says_is_refused_for_training_only(tmp_path, config, said):
    assert served(tmp_path, config).model.experts
    with pytest.raises(AutoscoutError, match=said) as refused:
        loaded(tmp_path, config)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {**QWEN, "model_type": "mamba2"},
            "the architecture 'mamba2' is not known; AutoScout knows .*qwen3_moe.*write layers",
        ),
        ({**QWEN, "model_type": "deepseek_v3"}, "has no kv_lora_rank"),
        (
            {**QWEN, "decoder_sparse_step": 2},
            r"experts in some layers only \(decoder_sparse_step = 2\), which is not supported",
        ),
        ({**QWEN, "mlp_only_layers": [0, 2]}, r"experts in some layers only \(mlp_only_layers = \[0, 2\]\)"),
        ({**QWEN, "mlp_only_layers": 7}, "mlp_only_layers = 7 must be a list"),
        ({**QWEN, "n_shared_experts": 1.5}, "n_shared_experts = 1.5 must be a whole number"),
        ({**QWEN, "model_type": "deepseek_v32"}, "sparse attention over selected tokens, which.*deepseek-v3-like"),
        ({**QWEN, "model_type": "qwen3_next"}, "qwen3_next has linear attention in most layers, which .*describe$"),
        ({**QWEN, "model_type": "", "text_config": {"model_type": "qwen3_5_moe_text"}}, "linear attention in most"),
        ({**QWEN, "hidden_size": "wide"}, "hidden_size = 'wide' must be a whole number"),
        ({"model_type": "llama"}, "has no num_hidden_layers"),
        ("{", "is not JSON"),
        ([], "it has no fields"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path, config, said):
    with pytest.raises(AutoscoutError, match=said) as refused:
        loaded(tmp_path, config)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("A100-80GB-PCIe", "a100-pcie"),
        ("a100-80g", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("rtx 6000 pro", "rtx-pro-6000"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("nvidia-gb200", "gb200"),
        ("tpu-v5", ""),
    ],
)
def test_a_device_is_known_within_a_name_for_it(said, meant):
    """Of "a100-80g" the device with half the memory was offered, of a driver's name none."""
    assert device_within(said) == meant


@pytest.mark.parametrize("name", sorted(_by_name()))
def test_sizes_of_a_published_model_hold_together(name):
    sizes = sizes_of(name)
    assert sizes["heads"] % sizes["kv_heads"] == 0
    assert sizes["hidden"] % 64 == 0
    assert ("norm" in sizes) == bool(sizes["preset"])


def test_the_page_of_models_is_what_the_code_reads() -> None:
    page = Path("docs/lab/models.md").read_text()
    assert models_page.page() == page, "run: PYTHONPATH=. python tests/tools/models_page.py > docs/lab/models.md"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("gemma3_text", "is supported for serving only: .* windows in its layers"),
        ("llama4_text", "is supported for serving only: .* attention within chunks"),
        ("minimax_m2", "is supported for serving only: .* norms of all queries and keys"),
        ("qwen2_5_vl_text", "is supported for serving only: .* the encoder of its images"),
        ("nemotron_h", "has state-space layers, which .model. cannot describe"),
        ("minimax", "has linear attention in most layers, which .model. cannot describe"),
    ],
)
def test_models_that_cannot_be_had_are_refused_at_init_by_what_they_have(kind: str, said: str, tmp_path: Path) -> None:
    """`init` wrote a job of each, which every verb then refused."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN, "model_type": kind}))
    with pytest.raises(AutoscoutError, match=f"{kind} {said}"):
        job_file([str(path)], tmp_path)
    if "serving only" not in said:
        with pytest.raises(AutoscoutError, match=f"{kind} {said}"):
            job_file(["vllm", "serve", str(tmp_path)], tmp_path)


# As their repositories have them, written down from memory; some sizes of Gemma 3 stand only in transformers.
SEVERAL = {
    "gemma3": {
        "model_type": "gemma3", "vision_config": {}, "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024},
    },
    "llama4": {
        "model_type": "llama4", "vision_config": {}, "text_config": {
            "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
            "attention_chunk_size": 8192, "vocab_size": 202048},
    },
    "minimax_m2": {
        "model_type": "minimax_m2", "hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads": 48,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1536, "num_local_experts": 256,
        "num_experts_per_tok": 8, "vocab_size": 200064, "use_qk_norm": True, "tie_word_embeddings": False,
    },
    "olmo2": {
        "model_type": "olmo2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 100352, "tie_word_embeddings": False,
    },
    "phi3": {
        "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "tie_word_embeddings": False,
    },
    "qwen2_5_vl": {
        "model_type": "qwen2_5_vl", "vision_config": {}, "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "billions", "active", "token_bytes"),  # bytes in bf16, of a token that is older than all windows
    [
        ("gemma3", 3.88, 3.88, 5 * 2 * 4 * 256 * 2),  # every sixth layer of 34
        ("llama4", 397, 16.2, 12 * 2 * 8 * 128 * 2),
        ("minimax_m2", 229, 10.4, 62 * 2 * 8 * 128 * 2),
        ("olmo2", 7.3, 6.9, 32 * 2 * 4096 * 2),
        ("phi3", 3.82, 3.72, 32 * 2 * 3072 * 2),
        ("qwen2_5_vl", 7.6, 7.07, 28 * 2 * 4 * 128 * 2),
    ],
)
def test_models_with_layers_of_several_kinds_can_be_served(
    kind: str, billions: float, active: float, token_bytes: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SEVERAL[kind]))
    text, notes = job_file(["vllm", "serve", str(tmp_path), "-tp", "8"], tmp_path)
    (tmp_path / "job.toml").write_text(text.replace('"GPU"', '"h200"'))
    job = load_job(tmp_path / "job.toml")
    assert parameters(job.model) / 1e9 == pytest.approx(billions, rel=0.01)
    assert active_parameters(job.model) / 1e9 == pytest.approx(active, rel=0.05)
    whole = job.model.layers - job.model.windowed_layers
    assert whole * kept_of_a_token(shape(job.model)) * 2 == token_bytes
    assert [note for note in notes if "are not counted" in note] == [
        "model: parts for images or sound are not counted, because the prompts of a load are text"
    ] * ("vision_config" in SEVERAL[kind])


@pytest.mark.parametrize("name", sorted(models()))
def test_every_published_model_is_served_by_its_name(name, tmp_path):
    """Kimi K2 had a head's size that its latent attention gives: init wrote a job that every verb refused."""
    text, notes = job_file(["python", "-m", "sglang.launch_server", "--model-path", name], tmp_path)
    (tmp_path / "job.toml").write_text(text.replace('"GPU"', '"b300"'))
    assert load_job(tmp_path / "job.toml").model.layers
    assert not any("AutoScout cannot read this job" in note for note in notes)
