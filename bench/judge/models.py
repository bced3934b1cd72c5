"""The programs that are recorded: one training step each of fourteen families of models, built without downloads.

A family is a function that returns a Program. Sizes are small; options make some of them wide (512), where rounding is
what it is in practice. Biases and norms get random values: with the usual zeros and ones many bugs would change
nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

DTYPES = ("float32", "bf16", "autocast")
VOCABULARY = 96
FAMILIES: dict[str, Callable[..., Program]] = {}


def plain_loss(program: Program) -> torch.Tensor:
    """The loss as models of transformers compute it from labels."""
    return program.model(**program.batch).loss


@dataclass
class Program:
    """One training step. A case changes any part of it before it runs."""

    model: nn.Module
    batch: dict[str, Any]
    loss: Callable[[Program], torch.Tensor] = plain_loss
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = lambda parameters: torch.optim.SGD(parameters, lr=0.05)
    dtype: str = "float32"
    backward: Callable[[torch.Tensor], None] = torch.Tensor.backward
    before_update: Callable[[Program], None] | None = None
    around: list[contextlib.AbstractContextManager[Any]] = field(default_factory=list)
    warm_up: Callable[[Program], None] | None = None  # runs inside the recording, before the step
    rebuild: Callable[..., Program] | None = None  # the same family with other options and the same weights
    watched: Any = None  # what the recorder is given, if not the model

    def step(self) -> torch.Tensor:
        """Forward, backward, update; returns the loss."""
        if self.warm_up is not None:
            self.warm_up(self)
        update = self.optimizer and self.optimizer([one for one in self.model.parameters() if one.requires_grad])
        with self.precision():
            loss = self.loss(self)
        if loss.requires_grad:
            self.backward(loss)
        if self.before_update is not None:
            self.before_update(self)
        if update:
            update.step()
        return loss.detach()

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """Autocast where the program is run under it."""
        if self.dtype == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                yield
        else:
            yield


def build(family: str, dtype: str = "float32", **options: Any) -> Program:
    """A family's program: always the same weights and batch."""
    torch.manual_seed(7)
    program = FAMILIES[family](**options)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, one in program.model.named_parameters():
            if one.dim() == 1 and not name.endswith(("A_log", "D")):
                one.add_(0.1 * torch.randn(one.shape, generator=generator))
    program.dtype = dtype
    if dtype in ("bf16", "float64"):
        to_dtype(program, {"bf16": torch.bfloat16, "float64": torch.float64}[dtype])

    def rebuild(**other: Any) -> Program:
        made = build(family, dtype, **{**options, **other})
        made.model.load_state_dict(program.model.state_dict())
        return made

    program.rebuild = rebuild
    return program


def to_dtype(program: Program, dtype: torch.dtype) -> None:
    """Model and batch in another floating-point type; rotary frequencies stay, as they do where weights are loaded."""
    kept = {name: one for name, one in program.model.named_buffers() if name.endswith("inv_freq")}
    program.model.to(dtype)
    for name, one in kept.items():
        path, _, last = name.rpartition(".")
        setattr(program.model.get_submodule(path), last, one)
    for key, value in program.batch.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            program.batch[key] = value.to(dtype)


def family(make: Callable[..., Program]) -> Callable[..., Program]:
    """Register a function as the family of its name."""
    FAMILIES[make.__name__] = make
    return make


def tokens(rows: int = 2, length: int = 16, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Token ids above 3, so that no special token is among them by chance."""
    return torch.randint(4, vocabulary, (rows, length), generator=torch.Generator().manual_seed(3))


def picture(rows: int = 2, channels: int = 3, size: int = 32) -> torch.Tensor:
    """Random pictures."""
    return torch.randn(rows, channels, size, size, generator=torch.Generator().manual_seed(5))


@family
def llama(width: int = 64, layers: int = 4, heads: int = 4, rows: int = 2, length: int = 16, **more: Any) -> Program:
    """Llama as transformers has it; width=512 for real noise."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads, vocab_size=VOCABULARY, max_position_embeddings=64, initializer_range=0.08,
        tie_word_embeddings=more.pop("tied", False), pad_token_id=0, bos_token_id=1, eos_token_id=2,
        use_cache=more.pop("use_cache", False), **more,
    )  # fmt: skip
    ids = tokens(rows, length)
    return Program(transformers.LlamaForCausalLM(config), {"input_ids": ids, "labels": ids})


@family
def gpt2(width: int = 64, layers: int = 3, **more: Any) -> Program:
    """GPT-2 with AdamW."""
    import transformers

    dropout = more.pop("dropout", 0.0)
    config = transformers.GPT2Config(
        n_embd=width, n_layer=layers, n_head=4, vocab_size=VOCABULARY, n_positions=64, initializer_range=0.08,
        attn_pdrop=dropout, resid_pdrop=dropout, embd_pdrop=dropout, bos_token_id=1, eos_token_id=2,
        use_cache=more.pop("use_cache", False), **more,
    )  # fmt: skip
    program = Program(transformers.GPT2LMHeadModel(config), {"input_ids": tokens(), "labels": tokens()})
    program.optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=False)
    return program


@family
def bert(width: int = 64, layers: int = 3, **more: Any) -> Program:
    """BERT with a classifier, and padding at the end of the second row."""
    import transformers

    config = transformers.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=2 * width,
        vocab_size=VOCABULARY, max_position_embeddings=64, initializer_range=0.08, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=5, **more,
    )  # fmt: skip
    ids, mask = tokens(), torch.ones(2, 16, dtype=torch.long)
    ids[1, 11:], mask[1, 11:] = 0, 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([1, 3])}
    return Program(transformers.BertForSequenceClassification(config), batch)


@family
def t5(width: int = 64, layers: int = 2, **more: Any) -> Program:
    """T5: encoder, decoder, relative positions."""
    import transformers

    config = transformers.T5Config(
        d_model=width, d_kv=width // 4, d_ff=2 * width, num_layers=layers, num_heads=4, vocab_size=VOCABULARY,
        relative_attention_num_buckets=8, relative_attention_max_distance=32, dropout_rate=0.0,
        initializer_factor=1.5, decoder_start_token_id=0, pad_token_id=0, use_cache=False, **more,
    )  # fmt: skip
    return Program(
        transformers.T5ForConditionalGeneration(config), {"input_ids": tokens(2, 24), "labels": tokens(2, 10)}
    )


@family
def whisper(width: int = 64, layers: int = 2, **more: Any) -> Program:
    """Whisper: convolutions over a spectrogram, then encoder and decoder."""
    import transformers

    config = transformers.WhisperConfig(
        d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=2 * width, decoder_ffn_dim=2 * width, vocab_size=VOCABULARY,
        num_mel_bins=16, max_source_positions=32, max_target_positions=32, init_std=0.08, dropout=0.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, use_cache=False, **more,
    )  # fmt: skip
    features = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(5))
    return Program(
        transformers.WhisperForConditionalGeneration(config), {"input_features": features, "labels": tokens(2, 10)}
    )


@family
def mixtral(width: int = 64, layers: int = 3, **more: Any) -> Program:
    """Mixtral: four experts, two for each token."""
    import transformers

    config = transformers.MixtralConfig(
        hidden_size=width, intermediate_size=width, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, vocab_size=VOCABULARY,
        max_position_embeddings=64, initializer_range=0.1, use_cache=False, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, tie_word_embeddings=False, **more,
    )  # fmt: skip
    ids = tokens()
    return Program(transformers.MixtralForCausalLM(config), {"input_ids": ids, "labels": ids})


@family
def vit(width: int = 64, layers: int = 3, **more: Any) -> Program:
    """A vision transformer on 32 x 32 pictures."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=2 * width, image_size=32,
        patch_size=8, num_labels=7, initializer_range=0.08, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **more,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return Program(model, {"pixel_values": picture(), "labels": torch.tensor([1, 4])})


@family
def clip(width: int = 64, layers: int = 2, **more: Any) -> Program:
    """CLIP: a text and a picture tower, and the contrastive loss."""
    import transformers

    both = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers, "num_attention_heads": 4}
    text = {**both, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": VOCABULARY - 1}
    vision = {**both, "image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(
        text_config=text, vision_config=vision, projection_dim=32, initializer_factor=2.0, **more
    )
    ids = tokens(3, 12)
    ids[:, 9] = VOCABULARY - 1  # the end of the text: its place is what the text tower returns
    batch = {"input_ids": ids, "pixel_values": picture(3), "return_loss": True}
    return Program(transformers.CLIPModel(config), batch)


@family
def mamba(width: int = 32, layers: int = 2, **more: Any) -> Program:
    """Mamba with its scan written in PyTorch."""
    import transformers

    config = transformers.MambaConfig(
        hidden_size=width, state_size=8, num_hidden_layers=layers, vocab_size=VOCABULARY, use_cache=False,
        initializer_range=0.1, use_conv_bias=True, pad_token_id=0, bos_token_id=1, eos_token_id=2, **more,
    )  # fmt: skip
    ids = tokens(2, 8)
    return Program(transformers.MambaForCausalLM(config), {"input_ids": ids, "labels": ids})


@family
def resnet(width: int = 16, **more: Any) -> Program:
    """A ResNet in training mode, with SGD and momentum."""
    import transformers

    config = transformers.ResNetConfig(
        embedding_size=width, hidden_sizes=[width, 2 * width, 4 * width], depths=[1, 2, 2], layer_type="basic",
        num_labels=7, **more,
    )  # fmt: skip
    program = Program(
        transformers.ResNetForImageClassification(config).train(),
        {"pixel_values": picture(4), "labels": torch.tensor([1, 4, 0, 6])},
    )
    program.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=False)
    return program


@family
def convnext(width: int = 16, **more: Any) -> Program:
    """A ConvNeXt of three stages."""
    import transformers

    config = transformers.ConvNextConfig(
        hidden_sizes=[width, 2 * width, 4 * width], depths=[1, 2, 1], num_stages=3, patch_size=2, num_labels=7,
        layer_scale_init_value=0.5, initializer_range=0.2, **more,
    )  # fmt: skip
    model = transformers.ConvNextForImageClassification(config)
    return Program(model, {"pixel_values": picture(), "labels": torch.tensor([1, 4])})


class Rotary:
    """Rotary positions; both layouts in use, halves (GPT-NeoX) and pairs (GPT-J)."""

    base, pairs, offset = 10000.0, False, 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Turn the last axis of [rows, heads, tokens, size]."""
        size = x.shape[-1]
        place = torch.arange(x.shape[-2], dtype=torch.float32) + self.offset
        angle = place[:, None] * self.base ** (-torch.arange(0, size, 2) / size)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        one, two = (x[..., ::2], x[..., 1::2]) if self.pairs else x.chunk(2, -1)
        turned = one * cos - two * sin, one * sin + two * cos
        return torch.stack(turned, -1).flatten(-2) if self.pairs else torch.cat(turned, -1)


class Attention(nn.Module):
    """Grouped-query attention with a norm on queries and keys, as a user would write it."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.qkv = nn.Linear(width, width + 2 * groups * self.size)
        self.out = nn.Linear(width, width)
        self.query_norm, self.key_norm = nn.LayerNorm(self.size), nn.LayerNorm(self.size)
        self.rotary = Rotary()
        self.scale, self.softmax_axis, self.diagonal, self.tile = self.size**-0.5, -1, 1, False

    def project(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Queries, keys and values."""
        rest = self.groups * self.size
        return list(self.qkv(x).split([self.heads * self.size, rest, rest], -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention."""
        rows, length, _ = x.shape
        q, k, v = (one.view(rows, length, -1, self.size).transpose(1, 2) for one in self.project(x))
        q, k = self.rotary(self.query_norm(q)), self.rotary(self.key_norm(k))
        times = self.heads // self.groups
        k, v = (one.repeat(1, times, 1, 1) if self.tile else one.repeat_interleave(times, dim=1) for one in (k, v))
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        hidden = torch.ones(length, length, dtype=torch.bool).triu(self.diagonal)
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=self.softmax_axis)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(rows, length, -1))


class FeedForward(nn.Module):
    """Two layers with GELU, approximated by tanh."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation = nn.GELU(approximate="tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Up, activation, down."""
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """Attention and feed-forward, each with its norm and its residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads, heads // 2), FeedForward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pre-norm."""
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Decoder(nn.Module):
    """A language model as a user would write it."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.width = width

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embedding(ids) * math.sqrt(self.width)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def next_token_loss(program: Program) -> torch.Tensor:
    """Cross entropy of the next token."""
    ids = program.batch["ids"]
    logits = program.model(ids)
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


@family
def decoder(width: int = 64, layers: int = 4, heads: int = 4, rows: int = 2, length: int = 16) -> Program:
    """The user's own language model; width=512 for real noise."""
    return Program(Decoder(width, layers, heads), {"ids": tokens(rows, length)}, loss=next_token_loss)


class DoubleConv(nn.Module):
    """Two convolutions with group norm, and the time added in between."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
        self.norm_1, self.norm_2 = nn.GroupNorm(4, outer), nn.GroupNorm(4, outer)
        self.time = nn.Linear(16, outer)
        self.activation = nn.SiLU()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """[rows, channels, height, width] and [rows, 16]."""
        x = self.activation(self.norm_1(self.conv_1(x))) + self.time(time)[:, :, None, None]
        return self.activation(self.norm_2(self.conv_2(x)))


class UNet(nn.Module):
    """A denoiser with two resolutions, as diffusion models have."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down_1, self.down_2 = DoubleConv(3, width), DoubleConv(width, 2 * width)
        self.pool = nn.AvgPool2d(3, 2, 1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.up_1, self.out = DoubleConv(3 * width, width), nn.Conv2d(width, 3, 1)

    def embed(self, time: torch.Tensor) -> torch.Tensor:
        """Sines and cosines of the time."""
        angle = time[:, None] * torch.exp(-math.log(1000.0) * torch.arange(8) / 8)
        return torch.cat([angle.sin(), angle.cos()], -1)

    def join(self, up: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        """The skip connection."""
        return torch.cat([skip, up], 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """The noise in x."""
        known = self.embed(time).to(x.dtype)
        first = self.down_1(x, known)
        second = self.down_2(self.pool(first), known)
        return self.out(self.up_1(self.join(self.up(second), first), known))


def denoising_loss(program: Program) -> torch.Tensor:
    """Mean squared error of the predicted noise."""
    batch = program.batch
    noise = batch["noise"]
    return functional.mse_loss(program.model(batch["x"] + 0.5 * noise, batch["time"].float()).float(), noise.float())


@family
def unet(width: int = 16, size: int = 16) -> Program:
    """A diffusion model's denoiser."""
    noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(9))
    batch = {"x": picture(2, 3, size), "noise": noise, "time": torch.tensor([3, 170])}
    return Program(UNet(width), batch, loss=denoising_loss)


class Tagger(nn.Module):
    """A bidirectional LSTM, a GRU on top, one label for each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(2 * width, width, batch_first=True)
        self.dropout, self.head = nn.Dropout(0.0), nn.Linear(width, 9)
        self.state: torch.Tensor | None = None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the labels."""
        hidden, _ = self.lstm(self.embedding(ids))
        hidden, _ = self.gru(hidden, self.state)
        return self.head(self.dropout(hidden))


def tagging_loss(program: Program) -> torch.Tensor:
    """Cross entropy of the labels."""
    ids = program.batch["ids"]
    return functional.cross_entropy(program.model(ids).flatten(0, 1).float(), program.batch["labels"].flatten())


@family
def lstm(width: int = 48) -> Program:
    """Recurrent networks."""
    return Program(Tagger(width), {"ids": tokens(), "labels": tokens() % 9}, loss=tagging_loss)
