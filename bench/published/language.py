"""Language models: torchtune, litgpt, open_clip and torch against transformers and each other."""

from __future__ import annotations

import torch
import transformers

from published.convert import Made, by_rules, plain, randomise
from published.vision import CLIP_BLOCK

IDS = (torch.arange(16) * 7 % 60 + 1).reshape(2, 8)
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 32,
}  # fmt: skip


def _made(target: torch.nn.Module, golden: torch.nn.Module, layers: dict[str, set[str]]) -> Made:
    return Made(target, golden, lambda model: plain(model(IDS)), lambda model: plain(_without_cache(model)), layers)


def _without_cache(model: torch.nn.Module) -> object:
    return model(input_ids=IDS, use_cache=False) if hasattr(model, "generation_config") else model(IDS)


_TUNE = [
    (r"^model\.embed_tokens", "tok_embeddings"), (r"^model\.norm\.weight", "norm.scale"), (r"^model\.", ""),
    (r"^lm_head", "output"), (r"self_attn\.o_proj", "attn.output_proj"), (r"self_attn", "attn"),
    (r"input_layernorm\.weight", "sa_norm.scale"), (r"post_attention_layernorm\.weight", "mlp_norm.scale"),
    (r"mlp\.gate_proj", "mlp.w1"), (r"mlp\.up_proj", "mlp.w3"), (r"mlp\.down_proj", "mlp.w2"),
]  # fmt: skip


def _interleaved(target: torch.nn.Module, heads: int, kv_heads: int) -> None:
    """Meta's rotary form pairs neighbours, the golden one halves: the rows of q and k are put in its order."""
    for name, value in target.state_dict().items():
        count = heads if ".q_proj." in name else kv_heads if ".k_proj." in name else 0
        if count:
            shape = value.shape
            turned = value.reshape(count, 2, -1, *shape[1:]).transpose(1, 2).reshape(shape).clone()
            with torch.no_grad():
                value.copy_(turned)


def llama_torchtune() -> Made:
    from torchtune.models.llama3 import llama3

    golden = randomise(transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SIZES, num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    )))  # fmt: skip
    target = llama3(64, 3, 4, 2, 32, 32, rope_base=10_000, intermediate_dim=48).eval()
    layers = by_rules(target, golden, _TUNE)
    _interleaved(target, 4, 2)
    return _made(target, golden, layers)


def mistral_torchtune() -> Made:
    from torchtune.models.mistral import mistral

    golden = randomise(transformers.MistralForCausalLM(transformers.MistralConfig(
        **SIZES, num_key_value_heads=4, rms_norm_eps=1e-5, sliding_window=None, head_dim=8,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )))  # fmt: skip
    target = mistral(64, 3, 4, 4, 32, 48, 32, rope_base=10_000, norm_eps=1e-5).eval()
    layers = by_rules(target, golden, _TUNE)
    _interleaved(target, 4, 4)
    return _made(target, golden, layers)


def qwen2_torchtune() -> Made:
    from torchtune.models.qwen2 import qwen2

    golden = randomise(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **SIZES, num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    )))  # fmt: skip
    target = qwen2(64, 3, 4, 2, 32, 48, 32, rope_base=10_000, norm_eps=1e-5).eval()
    return _made(target, golden, by_rules(target, golden, _TUNE))


def gemma_torchtune() -> Made:
    from torchtune.models.gemma import gemma

    golden = randomise(transformers.GemmaForCausalLM(transformers.GemmaConfig(
        **SIZES, num_key_value_heads=1, head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    )))  # fmt: skip
    target = gemma(64, 3, 4, 8, 1, 32, 48, 32, rope_base=10_000).eval()
    layers = by_rules(target, golden, _TUNE, skip="lm_head")
    _interleaved(target, 4, 1)
    return _made(target, golden, layers)


_LIT = [
    (r"^lm_head", "lm_head"), (r"^model\.embed_tokens", "transformer.wte"), (r"^model\.norm", "transformer.ln_f"),
    (r"^model\.layers", "transformer.h"), (r"self_attn\.q_proj\.(\w+)", r"attn.qkv.\1@0/3"),
    (r"self_attn\.k_proj\.(\w+)", r"attn.qkv.\1@1/3"), (r"self_attn\.v_proj\.(\w+)", r"attn.qkv.\1@2/3"),
    (r"self_attn\.(o_proj|dense)", "attn.proj"),
    (r"input_layernorm", "norm_1"), (r"post_attention_layernorm", "norm_2"),
    (r"mlp\.gate_proj", "mlp.fc_1"), (r"mlp\.up_proj", "mlp.fc_2"), (r"mlp\.down_proj", "mlp.proj"),
]  # fmt: skip


def llama_litgpt() -> Made:
    from litgpt.config import Config
    from litgpt.model import GPT

    golden = randomise(transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SIZES, num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    )))  # fmt: skip
    target = GPT(Config(
        block_size=32, vocab_size=64, padded_vocab_size=64, n_layer=3, n_head=4, n_query_groups=2, n_embd=32,
        rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name="RMSNorm", norm_eps=1e-5,
        mlp_class_name="LLaMAMLP", intermediate_size=48, rope_base=10_000,
    )).eval()  # fmt: skip
    return _made(target, golden, by_rules(target, golden, _LIT))


def pythia_litgpt() -> Made:
    from litgpt.config import Config
    from litgpt.model import GPT

    golden = randomise(transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    )))  # fmt: skip
    target = GPT(Config(
        block_size=32, vocab_size=64, padded_vocab_size=64, n_layer=3, n_head=4, n_embd=32, rotary_percentage=0.25,
        parallel_residual=True, bias=True, norm_class_name="LayerNorm", norm_eps=1e-5, mlp_class_name="GptNeoxMLP",
        intermediate_size=48, rope_base=10_000, gelu_approximate="none",
    )).eval()  # fmt: skip
    layers = by_rules(target, golden, [
        (r"^embed_out", "lm_head"), (r"gpt_neox\.embed_in", "transformer.wte"),
        (r"gpt_neox\.final_layer_norm", "transformer.ln_f"), (r"gpt_neox\.layers", "transformer.h"),
        (r"attention\.query_key_value", "attn.qkv"), (r"attention\.dense", "attn.proj"),
        (r"input_layernorm", "norm_1"), (r"post_attention_layernorm", "norm_2"), (r"mlp\.dense_h_to_4h", "mlp.fc"),
        (r"mlp\.dense_4h_to_h", "mlp.proj"),
    ], skip=r"attention\.(bias|masked_bias|rotary)|rotary_emb")  # fmt: skip
    # NeoX keeps q, k and v head by head.
    for name, value in target.state_dict().items():
        if ".attn.qkv." in name:
            with torch.no_grad():
                value.copy_(value.reshape(4, 3, 8, *value.shape[1:]).transpose(0, 1).reshape(value.shape).clone())
    return _made(target, golden, layers)


def llama_litgpt_torchtune() -> Made:
    from litgpt.config import Config
    from litgpt.model import GPT
    from torchtune.models.qwen2 import qwen2

    golden = randomise(qwen2(64, 3, 4, 2, 32, 48, 32, rope_base=10_000, norm_eps=1e-5))
    target = GPT(Config(
        block_size=32, vocab_size=64, padded_vocab_size=64, n_layer=3, n_head=4, n_query_groups=2, n_embd=32,
        rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name="RMSNorm", norm_eps=1e-5,
        mlp_class_name="LLaMAMLP", intermediate_size=48, rope_base=10_000, attn_bias=True,
    )).eval()  # fmt: skip
    layers = by_rules(target, golden, [
        (r"^output", "lm_head"), (r"^tok_embeddings", "transformer.wte"), (r"^norm\.scale", "transformer.ln_f.weight"),
        (r"^layers", "transformer.h"), (r"attn\.q_proj\.(\w+)", r"attn.qkv.\1@0/3"),
        (r"attn\.k_proj\.(\w+)", r"attn.qkv.\1@1/3"), (r"attn\.v_proj\.(\w+)", r"attn.qkv.\1@2/3"),
        (r"attn\.output_proj", "attn.proj"),
        (r"sa_norm\.scale", "norm_1.weight"), (r"mlp_norm\.scale", "norm_2.weight"),
        (r"mlp\.w1", "mlp.fc_1"), (r"mlp\.w3", "mlp.fc_2"), (r"mlp\.w2", "mlp.proj"),
    ])  # fmt: skip
    return _made(target, golden, layers)


def clip_text() -> Made:
    from open_clip.transformer import TextTransformer

    config = transformers.CLIPTextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=8, projection_dim=16, hidden_act="gelu", eos_token_id=63,
    )  # fmt: skip
    golden = randomise(transformers.CLIPTextModelWithProjection(config))
    target = TextTransformer(8, 64, 32, 4, 3, 2.0, output_dim=16, pool_type="argmax").eval()
    layers = by_rules(target, golden, [
        (r"^text_model\.", ""), (r"embeddings\.token_embedding", "token_embedding"),
        (r"embeddings\.position_embedding\.weight", "positional_embedding"), (r"final_layer_norm", "ln_final"),
        (r"text_projection\.weight", "text_projection@T"), *CLIP_BLOCK,
    ])  # fmt: skip
    ids = IDS.clone()
    ids[:, -1] = 63
    return Made(target, golden, lambda model: model(ids), lambda model: model(input_ids=ids).text_embeds, layers)


def bert_torch() -> Made:
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=16, hidden_act="gelu", layer_norm_eps=1e-5,
    )  # fmt: skip
    golden = randomise(transformers.BertModel(config, add_pooling_layer=False).encoder)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True)
    target = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    layers = by_rules(target, golden, [
        (r"^layer\.", "layers."), (r"attention\.self\.query\.(\w+)", r"self_attn.in_proj_\1@0/3"),
        (r"attention\.self\.key\.(\w+)", r"self_attn.in_proj_\1@1/3"),
        (r"attention\.self\.value\.(\w+)", r"self_attn.in_proj_\1@2/3"),
        (r"attention\.output\.dense", "self_attn.out_proj"), (r"attention\.output\.LayerNorm", "norm1"),
        (r"intermediate\.dense", "linear1"), (r"output\.dense", "linear2"), (r"output\.LayerNorm", "norm2"),
    ])  # fmt: skip
    hidden = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(0))
    return Made(target, golden, lambda model: model(hidden), lambda model: plain(model(hidden)), layers)
