"""Vision models: timm, torchvision and open_clip against transformers and each other."""

from __future__ import annotations

import timm
import torch
import torchvision
import transformers
from timm.models.vision_transformer import VisionTransformer

from published.convert import Made, by_rules, in_order, plain, randomise

IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def _made(target: torch.nn.Module, golden: torch.nn.Module, layers: dict[str, set[str]]) -> Made:
    return Made(target, golden, lambda model: plain(model(IMAGE)), lambda model: plain(model(IMAGE)), layers)


def _same_order(name: str, **options: object) -> Made:
    golden = randomise(getattr(torchvision.models, name)(num_classes=5, **options))
    target = timm.create_model(name, num_classes=5).eval()
    return _made(target, golden, in_order(target, golden))


def resnet_torchvision() -> Made:
    return _same_order("resnet18")


def densenet() -> Made:
    return _same_order("densenet121")


def mobilenet() -> Made:
    golden = randomise(torchvision.models.mobilenet_v2(num_classes=5))
    target = timm.create_model("mobilenetv2_100", num_classes=5).eval()
    return _made(target, golden, in_order(target, golden))


def efficientnet() -> Made:
    golden = randomise(torchvision.models.efficientnet_b0(num_classes=5))
    target = timm.create_model("efficientnet_b0", num_classes=5).eval()
    return _made(target, golden, in_order(target, golden))


def resnet_transformers() -> Made:
    config = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=5
    )
    golden = randomise(transformers.ResNetForImageClassification(config))
    target = timm.create_model("resnet18", num_classes=5).eval()
    layers = by_rules(target, golden, [
        (r"resnet\.embedder\.embedder\.convolution", "conv1"), (r"resnet\.embedder\.embedder\.normalization", "bn1"),
        (r"resnet\.encoder\.stages\.(\d)\.layers\.(\d)", lambda m: f"layer{int(m[1]) + 1}.{m[2]}"),
        (r"\.layer\.0\.convolution", ".conv1"), (r"\.layer\.0\.normalization", ".bn1"),
        (r"\.layer\.1\.convolution", ".conv2"), (r"\.layer\.1\.normalization", ".bn2"),
        (r"shortcut\.convolution", "downsample.0"), (r"shortcut\.normalization", "downsample.1"),
        (r"classifier\.1", "fc"),
    ])  # fmt: skip
    return _made(target, golden, layers)


_BLOCK = [
    (r"\.attention\.attention\.query\.(\w+)", r".attn.qkv.\1@0/3"),
    (r"\.attention\.attention\.key\.(\w+)", r".attn.qkv.\1@1/3"),
    (r"\.attention\.attention\.value\.(\w+)", r".attn.qkv.\1@2/3"),
    (r"\.attention\.output\.dense", ".attn.proj"),
    (r"\.attention\.q_proj\.(\w+)", r".attn.qkv.\1@0/3"), (r"\.attention\.k_proj\.(\w+)", r".attn.qkv.\1@1/3"),
    (r"\.attention\.v_proj\.(\w+)", r".attn.qkv.\1@2/3"), (r"\.attention\.o_proj", ".attn.proj"),
]  # fmt: skip


def vit_transformers() -> Made:
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        num_labels=5, layer_norm_eps=1e-6,
    )  # fmt: skip
    golden = randomise(transformers.ViTForImageClassification(config))
    target = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4, mlp_ratio=2, num_classes=5
    ).eval()
    layers = by_rules(target, golden, [
        (r"^vit\.", ""), (r"embeddings\.cls_token", "cls_token"), (r"embeddings\.position_embeddings", "pos_embed"),
        (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"), (r"(encoder\.layer|layers)\.", "blocks."),
        *_BLOCK, (r"\.layernorm_before", ".norm1"), (r"\.layernorm_after", ".norm2"),
        (r"\.(intermediate\.dense|mlp\.fc1)", ".mlp.fc1"), (r"(blocks\.\d+)\.(output\.dense|mlp\.fc2)", r"\1.mlp.fc2"),
        (r"^layernorm", "norm"), (r"classifier", "head"),
    ])  # fmt: skip
    return _made(target, golden, layers)


def vit_torchvision() -> Made:
    golden = randomise(torchvision.models.VisionTransformer(32, 8, 3, 4, 32, 64, num_classes=5))
    target = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4, mlp_ratio=2, num_classes=5
    ).eval()
    layers = by_rules(target, golden, [
        (r"class_token", "cls_token"), (r"encoder\.pos_embedding", "pos_embed"), (r"conv_proj", "patch_embed.proj"),
        (r"encoder\.layers\.encoder_layer_", "blocks."), (r"\.self_attention\.in_proj_", ".attn.qkv."),
        (r"\.self_attention\.out_proj", ".attn.proj"), (r"\.ln_(\d)", r".norm\1"), (r"\.mlp\.0", ".mlp.fc1"),
        (r"\.mlp\.3", ".mlp.fc2"), (r"encoder\.ln", "norm"), (r"heads\.head", "head"),
    ])  # fmt: skip
    return _made(target, golden, layers)


def dinov2() -> Made:
    config = transformers.Dinov2Config(
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, mlp_ratio=2
    )
    golden = randomise(transformers.Dinov2Model(config))
    target = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4, mlp_ratio=2, num_classes=0, init_values=1e-5,
        global_pool="",
    ).eval()  # fmt: skip
    layers = by_rules(target, golden, [
        (r"embeddings\.cls_token", "cls_token"), (r"embeddings\.position_embeddings", "pos_embed"),
        (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"), (r"(encoder\.layer|layers)\.", "blocks."),
        *_BLOCK, (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"), (r"^layernorm", "norm"),
    ], skip="mask_token")  # fmt: skip
    return _made(target, golden, layers)


def convnext() -> Made:
    golden = randomise(torchvision.models.ConvNeXt(
        [torchvision.models.convnext.CNBlockConfig(*sizes, 1) for sizes in ((8, 16), (16, 24), (24, 32), (32, None))],
        num_classes=5,
    ))  # fmt: skip
    target = timm.models.convnext.ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=5).eval()
    layers = by_rules(target, golden, [
        (r"features\.0\.(\d)", r"stem.\1"),
        (r"features\.([1357])\.", lambda m: f"stages.{int(m[1]) // 2}.blocks."),
        (r"features\.([246])\.", lambda m: f"stages.{int(m[1]) // 2}.downsample."),
        (r"\.block\.0", ".conv_dw"), (r"\.block\.2", ".norm"), (r"\.block\.3", ".mlp.fc1"), (r"\.block\.5", ".mlp.fc2"),
        (r"layer_scale", "gamma"), (r"classifier\.0", "head.norm"), (r"classifier\.2", "head.fc"),
    ])  # fmt: skip
    return _made(target, golden, layers)


def swin() -> Made:
    golden = randomise(torchvision.models.SwinTransformer(
        [4, 4], 16, [2, 2], [2, 4], [4, 4], mlp_ratio=2.0, num_classes=5, stochastic_depth_prob=0.0
    ))  # fmt: skip
    target = timm.models.swin_transformer.SwinTransformer(
        img_size=32, patch_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4), window_size=4, mlp_ratio=2.0,
        num_classes=5,
    ).eval()  # fmt: skip
    layers = by_rules(target, golden, [
        (r"features\.0\.0", "patch_embed.proj"), (r"features\.0\.2", "patch_embed.norm"),
        (r"features\.1\.", "layers.0.blocks."), (r"features\.2\.", "layers.1.downsample."),
        (r"features\.3\.", "layers.1.blocks."), (r"\.mlp\.0", ".mlp.fc1"), (r"\.mlp\.3", ".mlp.fc2"),
        (r"^head\.", "head.fc."),
    ], skip="relative_position_index")  # fmt: skip
    return _made(target, golden, layers)


def siglip() -> Made:
    config = transformers.SiglipVisionConfig(
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        hidden_act="gelu", vision_use_head=False,
    )  # fmt: skip
    golden = randomise(transformers.SiglipVisionModel(config))
    target = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4, mlp_ratio=2, num_classes=0, class_token=False,
        global_pool="",
    ).eval()  # fmt: skip
    layers = by_rules(target, golden, [
        (r"^vision_model\.", ""), (r"embeddings\.patch_embedding", "patch_embed.proj"),
        (r"embeddings\.position_embedding\.weight", "pos_embed"), (r"encoder\.layers\.", "blocks."),
        (r"\.self_attn\.q_proj\.(\w+)", r".attn.qkv.\1@0/3"), (r"\.self_attn\.k_proj\.(\w+)", r".attn.qkv.\1@1/3"),
        (r"\.self_attn\.v_proj\.(\w+)", r".attn.qkv.\1@2/3"), (r"\.self_attn\.out_proj", ".attn.proj"),
        (r"layer_norm(\d)", r"norm\1"), (r"post_layernorm", "norm"),
    ])  # fmt: skip
    return _made(target, golden, layers)


def clip_vision() -> Made:
    from open_clip.transformer import VisionTransformer as OpenVision

    config = transformers.CLIPVisionConfig(
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        projection_dim=16, hidden_act="gelu",
    )  # fmt: skip
    golden = randomise(transformers.CLIPVisionModelWithProjection(config))
    target = OpenVision(32, 8, 32, 3, 4, 2.0, output_dim=16).eval()
    layers = by_rules(target, golden, [
        (r"^vision_model\.", ""), (r"embeddings\.class_embedding", "class_embedding"),
        (r"embeddings\.patch_embedding", "conv1"), (r"embeddings\.position_embedding\.weight", "positional_embedding"),
        (r"pre_layrnorm", "ln_pre"), (r"post_layernorm", "ln_post"), (r"visual_projection\.weight", "proj@T"),
        *CLIP_BLOCK,
    ])  # fmt: skip
    return Made(
        target, golden, lambda model: model(IMAGE), lambda model: model(pixel_values=IMAGE).image_embeds, layers
    )


CLIP_BLOCK = [
    (r"encoder\.layers\.", "transformer.resblocks."),
    (r"\.self_attn\.q_proj\.(\w+)", r".attn.in_proj_\1@0/3"), (r"\.self_attn\.k_proj\.(\w+)", r".attn.in_proj_\1@1/3"),
    (r"\.self_attn\.v_proj\.(\w+)", r".attn.in_proj_\1@2/3"), (r"\.self_attn\.out_proj", ".attn.out_proj"),
    (r"layer_norm(\d)", r"ln_\1"), (r"mlp\.fc1", "mlp.c_fc"), (r"mlp\.fc2", "mlp.c_proj"),
]  # fmt: skip
