"""Models by name and from what Hugging Face repositories have."""

import json
from pathlib import Path

import msgspec
import pytest

from autoscout.job.presets import models
from autoscout.targets.jobs import load_job
from kb.records import AutoscoutError, Latent, Model
from kb.sizes import parameters

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


def loaded(folder: Path, config: object, more: str = ""):
    (folder / "job.toml").write_text(JOB.format(more=more))
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
    ],
)
def test_presets_are_as_large_as_their_cards_say(name, billions):
    assert parameters(msgspec.convert(models()[name], Model)) / 1e9 == pytest.approx(billions, rel=0.02)


def test_a_config_is_the_model_that_its_preset_is(tmp_path):
    job = loaded(tmp_path, QWEN)
    assert job.model == msgspec.convert(models()["qwen3-30b-a3b"], Model)
    assert loaded(tmp_path, QWEN, "layers = 24").model.layers == 24


def test_a_glm_is_read_from_its_config(tmp_path):
    glm = {  # as zai-org/GLM-4.5-Air has it; 106 billion by its card
        "model_type": "glm4_moe",
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "head_dim": 128,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 46,
        "vocab_size": 151552,
        "tie_word_embeddings": False,
    }
    model = loaded(tmp_path, glm).model
    assert (model.experts, model.topk, model.expert_ffn, model.gated) == (128, 8, 1408, True)
    assert parameters(model) / 1e9 == pytest.approx(106, rel=0.03)


DEEPSEEK = {  # DeepSeek-V2-Lite without its shared experts and its first layer
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 26,
    "vocab_size": 102400,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def test_latent_attention_is_read_from_a_config(tmp_path):
    model = loaded(tmp_path, DEEPSEEK, "[launch]\ntransformer_engine = true").model
    assert model.latent == Latent(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    left_out = 26 * 2 * 3 * 2048 * 1408 + 3 * 2048 * 10944  # two shared experts a layer, and the first layer
    assert parameters(model) == pytest.approx(15.7e9 - left_out, rel=0.005), "15.7 billion by the original's card"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**QWEN, "model_type": "mamba2"}, "the architecture 'mamba2' is not known, only .*qwen3_moe.*write layers"),
        ({**QWEN, "model_type": "deepseek_v3"}, "says nothing of kv_lora_rank"),
        (
            {**QWEN, "model_type": "kimi_k2", "n_shared_experts": 1, "first_k_dense_replace": 3},
            r"every token takes \(n_shared_experts = 1\).*without experts \(first_k_dense_replace = 3\).*-v3-like",
        ),
        ({**QWEN, "model_type": "deepseek_v32"}, "attention to chosen tokens.*deepseek-v3-like"),
        ({**QWEN, "model_type": "qwen3_next"}, "qwen3_next has linear attention in most layers, which .*describe$"),
        ({**QWEN, "model_type": "", "text_config": {"model_type": "qwen3_5_moe_text"}}, "linear attention in most"),
        ({**QWEN, "hidden_size": "wide"}, "hidden_size = 'wide' is no whole number"),
        ({"model_type": "llama"}, "says nothing of num_hidden_layers"),
        ("{", "is no JSON"),
        ([], "it has no fields"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path, config, said):
    with pytest.raises(AutoscoutError, match=said) as refused:
        loaded(tmp_path, config)
    assert refused.value.exit_code == 2
