"""Pairs that were committed before they were compared: speech, proteins, state spaces, experts, codecs and vision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

from published.convert import Made, by_rules, in_order, owner, plain, randomise

IMAGE = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(5))
IDS = (torch.arange(18) * 5 % 59 + 4).reshape(2, 9)
SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
PYRAMID: dict[str, Any] = {"depths": [1, 1, 1, 1], "mlp_ratios": [2, 2, 2, 2]}
SPLIT = [
    (r"\.q_proj\.(\w+)", r".qkv.\1@0/3"), (r"\.k_proj\.(\w+)", r".qkv.\1@1/3"), (r"\.v_proj\.(\w+)", r".qkv.\1@2/3"),
]  # fmt: skip


def _both(target: nn.Module, golden: nn.Module, given: Tensor, layers: dict[str, set[str]]) -> Made:
    def call(model: nn.Module) -> Tensor:
        extra = {"use_cache": False} if hasattr(model, "generation_config") else {}
        return plain(model(given, **extra))

    return Made(target.eval(), golden, call, call, layers)


def _same_eps(model: nn.Module, eps: float) -> nn.Module:
    """One epsilon in all norms: packages choose different defaults."""
    for module in model.modules():
        for name in ("eps", "variance_epsilon"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, eps)
    return model


def whisper() -> Made:
    """OpenAI's package and transformers: an encoder and a decoder that attends to it."""
    from whisper.model import ModelDimensions, Whisper

    golden = randomise(transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
        vocab_size=64, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=20,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )))  # fmt: skip
    target = Whisper(ModelDimensions(16, 20, 32, 4, 2, 64, 16, 32, 4, 2)).eval()
    layers = by_rules(target, golden, [
        (r"^model\.", ""), (r"embed_positions\.weight", "positional_embedding"), (r"embed_tokens", "token_embedding"),
        (r"\.layers\.", ".blocks."), (r"self_attn_layer_norm", "attn_ln"),
        (r"encoder_attn_layer_norm", "cross_attn_ln"),
        (r"final_layer_norm", "mlp_ln"), (r"encoder\.layer_norm", "encoder.ln_post"), (r"self_attn", "attn"),
        (r"decoder\.layer_norm", "decoder.ln"), (r"encoder_attn", "cross_attn"), (r"q_proj", "query"),
        (r"k_proj", "key"), (r"v_proj", "value"), (r"out_proj", "out"), (r"fc1", "mlp.0"), (r"fc2", "mlp.2"),
    ], skip="proj_out")  # fmt: skip
    sound = torch.randn(2, 16, 40, generator=torch.Generator().manual_seed(6))
    return Made(
        target, golden, lambda model: model(sound, IDS),
        lambda model: model(input_features=sound, decoder_input_ids=IDS, use_cache=False).logits, layers,
    )  # fmt: skip


def esm2() -> Made:
    """Meta's protein model and transformers."""
    from esm.model.esm2 import ESM2

    golden = randomise(transformers.EsmForMaskedLM(transformers.EsmConfig(
        **{**SMALL, "vocab_size": 33}, mask_token_id=32, pad_token_id=1, intermediate_size=128,
        position_embedding_type="rotary", token_dropout=True, max_position_embeddings=64, layer_norm_eps=1e-5,
        attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )))  # fmt: skip
    target = ESM2(3, 32, 4, "ESM-1b", token_dropout=True).eval()
    layers = by_rules(target, golden, [
        (r"lm_head\.decoder\.weight", "lm_head.weight"), (r"^esm\.", ""),
        (r"embeddings\.word_embeddings", "embed_tokens"), (r"encoder\.layer", "layers"),
        (r"encoder\.emb_layer", "emb_layer"), (r"attention\.self\.query", "self_attn.q_proj"),
        (r"attention\.self\.key", "self_attn.k_proj"), (r"attention\.self\.value", "self_attn.v_proj"),
        (r"attention\.output\.dense", "self_attn.out_proj"), (r"attention\.LayerNorm", "self_attn_layer_norm"),
        (r"intermediate\.dense", "fc1"), (r"output\.dense", "fc2"), (r"LayerNorm", "final_layer_norm"),
    ], skip="inv_freq|contact_head")  # fmt: skip
    ids = IDS % 20 + 4
    return Made(target, golden, lambda model: model(ids)["logits"], lambda model: model(input_ids=ids).logits, layers)


def segformer() -> Made:
    """segmentation_models_pytorch's encoder and transformers."""
    from segmentation_models_pytorch.encoders.mix_transformer import MixVisionTransformer

    golden = randomise(transformers.SegformerModel(transformers.SegformerConfig(
        **PYRAMID, hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16
    )))  # fmt: skip
    target = MixVisionTransformer(
        **PYRAMID, embed_dims=[8, 16, 24, 32], num_heads=[1, 2, 3, 4], qkv_bias=True, sr_ratios=[8, 4, 2, 1]
    )
    layers = by_rules(_same_eps(target, 1e-5), _same_eps(golden, 1e-5), [
        (r"sequence_reduction\.sequence_reduction", "sr"), (r"sequence_reduction\.layer_norm", "norm"),
        (r"stages\.(\d)\.patch_embeddings\.layer_norm", lambda m: f"patch_embed{int(m[1]) + 1}.norm"),
        (r"stages\.(\d)\.patch_embeddings", lambda m: f"patch_embed{int(m[1]) + 1}"),
        (r"stages\.(\d)\.blocks", lambda m: f"block{int(m[1]) + 1}"),
        (r"stages\.(\d)\.layer_norm", lambda m: f"norm{int(m[1]) + 1}"), (r"attention\.", "attn."),
        (r"q_proj", "q"), (r"k_proj\.(\w+)", r"kv.\1@0/2"), (r"v_proj\.(\w+)", r"kv.\1@1/2"), (r"o_proj", "proj"),
        (r"layernorm_before", "norm1"), (r"layernorm_after", "norm2"),
    ])  # fmt: skip
    return Made(
        target.eval(), golden, lambda model: model(IMAGE)[-1], lambda model: model(IMAGE).last_hidden_state, layers
    )


def mixer() -> Made:
    """mlp_mixer_pytorch, which mixes tokens by convolutions of width 1, and timm, which turns the axes."""
    from mlp_mixer_pytorch import MLPMixer

    golden = randomise(timm.models.mlp_mixer.MlpMixer(
        num_classes=5, img_size=64, patch_size=16, num_blocks=3, embed_dim=32, mlp_ratio=(4.0, 1.0)
    ))  # fmt: skip
    target = MLPMixer(
        image_size=64, channels=3, patch_size=16, dim=32, depth=3, num_classes=5, expansion_factor=4,
        expansion_factor_token=1,
    )  # fmt: skip
    with torch.no_grad():  # a patch is read by rows with its colours last
        turned = golden.stem.proj.weight.clone().permute(0, 2, 3, 1)
    layers = by_rules(_same_eps(target, 1e-5), _same_eps(golden, 1e-5), [
        (r"stem\.proj", "1"), (r"blocks\.(\d)\.norm1", lambda m: f"{int(m[1]) + 2}.0.norm"),
        (r"blocks\.(\d)\.norm2", lambda m: f"{int(m[1]) + 2}.1.norm"),
        (r"blocks\.(\d)\.mlp_tokens\.fc1", lambda m: f"{int(m[1]) + 2}.0.fn.0"),
        (r"blocks\.(\d)\.mlp_tokens\.fc2", lambda m: f"{int(m[1]) + 2}.0.fn.3"),
        (r"blocks\.(\d)\.mlp_channels\.fc1", lambda m: f"{int(m[1]) + 2}.1.fn.0"),
        (r"blocks\.(\d)\.mlp_channels\.fc2", lambda m: f"{int(m[1]) + 2}.1.fn.3"),
        (r"^norm", "5"), (r"^head", "7"),
    ])  # fmt: skip
    with torch.no_grad():
        target[1].weight.copy_(turned.reshape(32, -1))
    return _both(target, golden, IMAGE, layers)


def mamba() -> Made:
    """mambapy and transformers: a state space, step by step."""
    from mambapy.mamba import Mamba, MambaConfig, RMSNorm

    golden = randomise(transformers.MambaModel(transformers.MambaConfig(
        vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=2, use_mambapy=False
    )))  # fmt: skip
    target = nn.Sequential(Mamba(MambaConfig(d_model=32, n_layers=2, d_state=4, pscan=False)), RMSNorm(32)).eval()
    layers = by_rules(
        _same_eps(target, 1e-5), _same_eps(golden, 1e-5), [(r"^layers", "0.layers"), (r"norm_f", "1")],
        skip="embeddings",
    )  # fmt: skip
    hidden = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(7))
    return Made(
        target, golden, lambda model: model(hidden),
        lambda model: model(inputs_embeds=hidden, use_cache=False).last_hidden_state, layers,
    )  # fmt: skip


def sam() -> Made:
    """segment_anything's image encoder and transformers: windows and relative positions."""
    from segment_anything.modeling import ImageEncoderViT

    golden = randomise(transformers.SamVisionModel(transformers.SamVisionConfig(
        hidden_size=32, output_channels=16, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=8,
        mlp_dim=64, window_size=4, global_attn_indexes=[1], num_pos_feats=8,
    )))  # fmt: skip
    target = ImageEncoderViT(
        img_size=64, patch_size=8, embed_dim=32, depth=2, num_heads=4, mlp_ratio=2, out_chans=16,
        norm_layer=partial(nn.LayerNorm, eps=1e-6), qkv_bias=True, use_rel_pos=True, window_size=4,
        global_attn_indexes=(1,),
    )  # fmt: skip
    layers = by_rules(target, golden, [
        (r"^vision_encoder\.", ""), (r"patch_embed\.projection", "patch_embed.proj"), (r"^layers", "blocks"),
        (r"neck\.conv1", "neck.0"), (r"neck\.layer_norm1", "neck.1"), (r"neck\.conv2", "neck.2"),
        (r"neck\.layer_norm2", "neck.3"), (r"layer_norm(\d)", r"norm\1"),
    ])  # fmt: skip
    return _both(target, golden, IMAGE, layers)


def t5_encoder() -> Made:
    """torchtune's T5 encoder and transformers."""
    from torchtune.models.t5._component_builders import t5_encoder as build

    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4, feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
    )  # fmt: skip
    config.dense_act_fn = "gelu"
    golden = randomise(transformers.T5EncoderModel(config))
    target = build(
        embed_dim=32, mlp_dim=64, num_heads=4, head_dim=8, num_layers=3, rel_pos_num_buckets=32, rel_pos_max_dist=128,
        vocab_size=64, norm_eps=1e-6, max_seq_len=9,
    )  # fmt: skip
    layers = by_rules(target, golden, [
        (r"^encoder\.", ""), (r"embed_tokens", "token_embedding"), (r"final_layer_norm\.weight", "final_norm.scale"),
        (r".*relative_attention_bias", "relative_position_bias.embedding"), (r"^block", "layers"),
        (r"layer\.0\.SelfAttention\.o", "attn.output_proj"), (r"layer\.0\.SelfAttention\.(\w)\.", r"attn.\1_proj."),
        (r"layer\.0\.layer_norm\.weight", "sa_norm.scale"), (r"layer\.1\.layer_norm\.weight", "mlp_norm.scale"),
        (r"layer\.1\.DenseReluDense\.wi_0", "mlp.w1"), (r"layer\.1\.DenseReluDense\.wi_1", "mlp.w3"),
        (r"layer\.1\.DenseReluDense\.wo", "mlp.w2"),
    ], skip="^shared")  # fmt: skip
    return _both(target, golden, IDS, layers)


def flux_decoder() -> Made:
    """torchtune's image decoder and diffusers."""
    from diffusers.models.autoencoders.vae import Decoder
    from torchtune.models.flux import flux_1_autoencoder

    golden = randomise(Decoder(
        in_channels=4, out_channels=3, up_block_types=("UpDecoderBlock2D",) * 2, block_out_channels=(32, 64),
        layers_per_block=1, norm_num_groups=32,
    ))  # fmt: skip
    target = flux_1_autoencoder(32, 3, 3, 32, [1, 2], 4, 1, 1.0, 0.0).decoder
    layers = by_rules(target, golden, [
        (r"mid_block\.resnets\.0", "mid.0"), (r"mid_block\.resnets\.1", "mid.2"),
        (r"mid_block\.attentions\.0\.group_norm", "mid.1.norm"),
        (r"mid_block\.attentions\.0\.to_out\.0", "mid.1.attn.output_proj"),
        (r"mid_block\.attentions\.0\.to_(\w)", r"mid.1.attn.\1_proj"), (r"up_blocks\.(\d)\.resnets", r"up.\1.layers"),
        (r"up_blocks\.(\d)\.upsamplers\.0", r"up.\1.upsample"), (r"conv_shortcut", "shortcut"),
        (r"\.norm1", ".main.0"), (r"\.conv1", ".main.2"), (r"\.norm2", ".main.3"), (r"\.conv2", ".main.5"),
        (r"conv_norm_out", "end.0"), (r"conv_out", "end.2"),
    ])  # fmt: skip
    latent = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(8))
    return _both(_same_eps(target, 1e-6), _same_eps(golden, 1e-6), latent, layers)


def beit() -> Made:
    golden = randomise(transformers.BeitForImageClassification(transformers.BeitConfig(
        image_size=64, patch_size=16, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        num_labels=5, use_relative_position_bias=True, use_mean_pooling=True, layer_scale_init_value=0.1,
        layer_norm_eps=1e-6,
    )))  # fmt: skip
    target = timm.models.beit.Beit(
        img_size=64, patch_size=16, embed_dim=32, depth=3, num_heads=4, mlp_ratio=2, num_classes=5,
        use_rel_pos_bias=True, use_abs_pos_emb=False, init_values=0.1,
    )  # fmt: skip
    layers = by_rules(target, golden, [
        (r"^beit\.", ""), (r"embeddings\.cls_token", "cls_token"), (r"^layers", "blocks"), (r"attention\.", "attn."),
        (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"), (r"lambda_", "gamma_"),
        (r"relative_position_bias\.relative", "attn.relative"), (r"attn\.(q|v)_proj\.bias", r"attn.\1_bias"), *SPLIT,
        (r"o_proj", "proj"), (r"layernorm_before", "norm1"), (r"layernorm_after", "norm2"),
        (r"pooler\.layernorm", "fc_norm"), (r"^classifier", "head"),
    ], skip="index")  # fmt: skip
    return _both(_same_eps(target, 1e-6), _same_eps(golden, 1e-6), IMAGE, layers)


def pvt_v2() -> Made:
    golden = randomise(transformers.PvtV2ForImageClassification(transformers.PvtV2Config(
        **PYRAMID, image_size=64, hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 3, 4], num_labels=5
    )))  # fmt: skip
    target = timm.models.pvt_v2.PyramidVisionTransformerV2(
        **PYRAMID, embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), num_classes=5
    )
    layers = by_rules(target, golden, [
        (r"^pvt_v2\.encoder\.", ""), (r"layers\.0\.patch_embedding\.layer_norm", "patch_embed.norm"),
        (r"layers\.0\.patch_embedding", "patch_embed"), (r"^layers", "stages"),
        (r"patch_embedding\.layer_norm", "downsample.norm"), (r"patch_embedding", "downsample"),
        (r"layer_norm_(\d)", r"norm\1"), (r"attention\.query", "attn.q"), (r"attention\.key\.(\w+)", r"attn.kv.\1@0/2"),
        (r"attention\.value\.(\w+)", r"attn.kv.\1@1/2"), (r"attention\.spatial_reduction", "attn.sr"),
        (r"attention\.layer_norm", "attn.norm"), (r"attention\.proj", "attn.proj"), (r"mlp\.dense", "mlp.fc"),
        (r"dwconv\.dwconv", "dwconv"), (r"layer_norm", "norm"), (r"^classifier", "head"),
    ])  # fmt: skip
    return _both(_same_eps(target, 1e-6), _same_eps(golden, 1e-6), IMAGE, layers)


def focalnet() -> Made:
    """timm keeps the channels first, transformers last."""
    golden = randomise(transformers.FocalNetForImageClassification(transformers.FocalNetConfig(
        image_size=64, embed_dim=16, depths=[1, 2], hidden_sizes=[16, 32], focal_levels=[2, 2], focal_windows=[3, 3],
        num_labels=5, mlp_ratio=2.0,
    )))  # fmt: skip
    target = timm.models.focalnet.FocalNet(
        embed_dim=16, depths=(1, 2), focal_levels=(2, 2), focal_windows=(3, 3), mlp_ratio=2.0, num_classes=5
    )
    layers = by_rules(target, golden, [
        (r"^focalnet\.", ""), (r"embeddings\.patch_embeddings\.projection", "stem.proj"),
        (r"embeddings\.norm", "stem.norm"), (r"encoder\.stages\.(\d)\.layers", r"layers.\1.blocks"),
        (r"encoder\.stages\.0\.downsample\.projection", "layers.1.downsample.proj"),
        (r"encoder\.stages\.0\.downsample", "layers.1.downsample"), (r"projection_in", "f"),
        (r"projection_context", "h"), (r"projection_out", "proj"), (r"^layernorm", "norm"), (r"^classifier", "head.fc"),
    ])  # fmt: skip
    return _both(_same_eps(target, 1e-5), _same_eps(golden, 1e-5), IMAGE, layers)


def levit() -> Made:
    golden = randomise(transformers.LevitForImageClassification(transformers.LevitConfig(
        image_size=64, hidden_sizes=[16, 24, 32], num_attention_heads=[2, 3, 4], depths=[1, 1, 1], key_dim=[8, 8, 8],
        num_labels=5,
    )))  # fmt: skip
    target = timm.models.levit.Levit(
        img_size=64, embed_dim=(16, 24, 32), key_dim=8, depth=(1, 1, 1), num_heads=(2, 3, 4), num_classes=5
    )
    layers = in_order(target, golden)

    def call(model: nn.Module) -> Tensor:
        return plain(model.train().eval()(IMAGE))  # both keep biases of an earlier call until they are in training

    return Made(target.eval(), golden, call, call, layers)


def inception() -> Made:
    golden = randomise(torchvision.models.inception_v3(num_classes=5, aux_logits=False, init_weights=False))
    target = timm.create_model("inception_v3", num_classes=5, aux_logits=False)
    picture = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(9))
    return _both(_same_eps(target, 1e-3), golden, picture, in_order(target, golden))


def mnasnet() -> Made:
    golden = randomise(torchvision.models.mnasnet0_5(num_classes=5))
    target = timm.create_model("mnasnet_050", num_classes=5)
    return _both(target, golden, IMAGE, in_order(target, golden))


def regnet() -> Made:
    """The shortcut comes first in one and last in the other."""
    golden = randomise(torchvision.models.regnet_y_400mf(num_classes=5))
    target = timm.create_model("regnety_004", num_classes=5)
    layers = by_rules(target, golden, [
        (r"^stem\.0", "stem.conv"), (r"^stem\.1", "stem.bn"),
        (r"trunk_output\.block\d\.block(\d)-(\d+)", lambda m: f"s{m[1]}.b{int(m[2]) + 1}"),
        (r"\.proj\.0", ".downsample.conv"), (r"\.proj\.1", ".downsample.bn"), (r"\.f\.se", ".se"),
        (r"\.f\.(\w)\.0", lambda m: f".conv{'abc'.index(m[1]) + 1}.conv"),
        (r"\.f\.(\w)\.1", lambda m: f".conv{'abc'.index(m[1]) + 1}.bn"), (r"^fc", "head.fc"),
    ])  # fmt: skip
    return _both(target, golden, IMAGE, layers)


def albert() -> Made:
    """curated_transformers and transformers: one layer, called again and again."""
    from curated_transformers.models import ALBERTConfig, ALBERTEncoder

    golden = randomise(transformers.AlbertModel(transformers.AlbertConfig(
        **SMALL, embedding_size=16, intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ), add_pooling_layer=False))  # fmt: skip
    target = ALBERTEncoder(ALBERTConfig(
        embedding_width=16, hidden_width=32, intermediate_width=64, n_attention_heads=4, n_hidden_layers=3, n_pieces=64,
        n_positions=32, model_max_length=32,
    ))  # fmt: skip
    layers = by_rules(target, golden, [
        (r"encoder\.embedding_hidden_mapping_in", "embeddings.projection"), (r"word_embeddings", "piece_embeddings"),
        (r"token_type_embeddings", "type_embeddings"), (r"embeddings\.LayerNorm", "embeddings.embed_output_layer_norm"),
        (r"encoder\.albert_layer_groups", "groups"), (r"albert_layers", "group_layers"),
        (r"full_layer_layer_norm", "ffn_residual_layer_norm"), (r"attention\.LayerNorm", "attn_residual_layer_norm"),
        (r"attention\.dense", "mha.output"), (r"attention\.", "mha."), (r"\.ffn\.", ".ffn.intermediate."),
        (r"\.ffn_output\.", ".ffn.output."),
    ])  # fmt: skip
    return Made(target.eval(), golden, _curated, lambda model: model(input_ids=IDS).last_hidden_state, layers)


def mpt() -> Made:
    """curated_transformers and transformers: positions as slopes that are added to the scores."""
    from curated_transformers.models import MPTConfig, MPTDecoder

    golden = randomise(transformers.MptModel(transformers.MptConfig(
        d_model=32, n_heads=4, n_layers=3, expansion_ratio=4, max_seq_len=32, vocab_size=64
    )))  # fmt: skip
    target = MPTDecoder(MPTConfig(
        hidden_width=32, n_attention_heads=4, n_hidden_layers=3, n_pieces=64, model_max_length=32, dtype=torch.float32
    ))  # fmt: skip
    layers = by_rules(target, golden, [
        (r"^wte", "embeddings.piece_embeddings"), (r"^blocks", "layers"), (r"norm_1", "attn_input_layer_norm"),
        (r"norm_2", "ffn_input_layer_norm"), (r"attn\.Wqkv", "mha.input"), (r"attn\.out_proj", "mha.output"),
        (r"ffn\.up_proj", "ffn.intermediate"), (r"ffn\.down_proj", "ffn.output"), (r"norm_f", "output_layer_norm"),
    ])  # fmt: skip
    return Made(
        target.eval(), golden, _curated, lambda model: model(input_ids=IDS, use_cache=False).last_hidden_state, layers
    )


def _curated(model: nn.Module) -> Tensor:
    from curated_transformers.layers import AttentionMask

    output = model(IDS, AttentionMask(torch.ones(IDS.shape, dtype=torch.bool)))
    return output.all_outputs[-1]  # type: ignore[no-any-return]


def _litgpt(**options: Any) -> nn.Module:
    from litgpt.config import Config
    from litgpt.model import GPT

    return GPT(Config(
        block_size=32, vocab_size=64, padded_vocab_size=64, n_layer=3, n_head=4, n_embd=32, **options
    ))  # fmt: skip


LITGPT: list[tuple[str, str | Callable[..., str]]] = [
    (r"^model\.embed_tokens", "transformer.wte"), (r"^model\.(norm|final_layernorm)", "transformer.ln_f"),
    (r"^model\.layers", "transformer.h"), (r"self_attn", "attn"), *SPLIT, (r"attn\.(o_proj|dense)", "attn.proj"),
]  # fmt: skip


def mixtral_litgpt() -> Made:
    """litgpt's experts are modules, transformers' one stacked weight."""
    golden = randomise(transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **SMALL, num_key_value_heads=2, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2,
        max_position_embeddings=32, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )))  # fmt: skip
    target = _litgpt(
        n_query_groups=2, rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name="RMSNorm",
        norm_eps=1e-5, mlp_class_name="LLaMAMoE", moe_intermediate_size=48, intermediate_size=48, n_expert=4,
        n_expert_per_token=2,
    )  # fmt: skip
    layers = by_rules(target, golden, [
        *LITGPT, (r"input_layernorm", "norm_1"), (r"post_attention_layernorm", "norm_2"),
    ], skip=r"\.experts\.")  # fmt: skip
    source = golden.state_dict()
    for name, value in target.state_dict().items():
        before, found, after = name.partition(".mlp.experts.")
        if found:
            number, kind, _ = after.split(".")
            key = f"model.layers.{before.rpartition('.')[2]}.mlp.experts.{'down' if kind == 'proj' else 'gate_up'}_proj"
            stacked = source[key][int(number)]
            part = stacked if kind == "proj" else stacked[:48] if kind == "fc_1" else stacked[48:]
            with torch.no_grad():
                value.copy_(part)
            layers.setdefault(owner(name), set()).add(owner(key))
    return _both(target, golden, IDS, layers)


def gemma2_litgpt() -> Made:
    """Norms before and after each part, and scores held within limits."""
    golden = randomise(transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **SMALL, num_key_value_heads=2, head_dim=8, intermediate_size=48, query_pre_attn_scalar=8,
        max_position_embeddings=32, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )))  # fmt: skip
    target = _litgpt(
        name="Gemma-2", n_query_groups=2, head_size=8, rotary_percentage=1.0, parallel_residual=False, bias=False,
        norm_class_name="RMSNorm", norm_eps=1e-6, mlp_class_name="GemmaMLP", gelu_approximate="tanh",
        intermediate_size=48, post_attention_norm=True, post_mlp_norm=True, scale_embeddings=True,
        attention_logit_softcapping=50.0, final_logit_softcapping=30.0, attention_scores_scalar=8,
    )  # fmt: skip
    layers = by_rules(target, golden, [
        *LITGPT, (r"input_layernorm", "norm_1"), (r"post_attention_layernorm", "post_attention_norm"),
        (r"pre_feedforward_layernorm", "norm_2"), (r"post_feedforward_layernorm", "post_mlp_norm"),
        (r"gate_proj", "fc_1"), (r"up_proj", "fc_2"), (r"down_proj", "proj"),
    ])  # fmt: skip
    return _both(target, golden, IDS, layers)


def phi_litgpt() -> Made:
    """One norm for attention and feed-forward side by side; half of each head turned."""
    golden = randomise(transformers.PhiForCausalLM(transformers.PhiConfig(
        **SMALL, intermediate_size=64, max_position_embeddings=32,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    )))  # fmt: skip
    target = _litgpt(
        rotary_percentage=0.5, shared_attention_norm=True, lm_head_bias=True, gelu_approximate="tanh",
        intermediate_size=64,
    )  # fmt: skip
    layers = by_rules(target, golden, [
        *LITGPT, (r"input_layernorm", "norm_1"), (r"mlp\.fc1", "mlp.fc"), (r"mlp\.fc2", "mlp.proj"),
    ])  # fmt: skip
    return _both(target, golden, IDS, layers)


def falcon_litgpt() -> Made:
    """Queries of four heads and one key and value in one projection."""
    golden = randomise(transformers.FalconForCausalLM(transformers.FalconConfig(
        **SMALL, multi_query=True, parallel_attn=True, bias=False, new_decoder_architecture=False, alibi=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )))  # fmt: skip
    target = _litgpt(
        n_query_groups=1, rotary_percentage=1.0, shared_attention_norm=True, bias=False, intermediate_size=128
    )
    layers = by_rules(target, golden, [
        (r"word_embeddings", "wte"), (r"self_attention\.query_key_value", "attn.qkv"),
        (r"self_attention\.dense", "attn.proj"), (r"input_layernorm", "norm_1"), (r"dense_h_to_4h", "fc"),
        (r"dense_4h_to_h", "proj"),
    ])  # fmt: skip
    return _both(target, golden, IDS, layers)
