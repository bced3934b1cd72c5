"""One model, run in two forms that people compare: no false claim, and a planted fault found at its module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pairing import match, matched
from test_place import FAULTY, IDS, OTHER_IDS, Wrapper, broken, compared, llama, place_of_first, recorded, step
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    BartConfig,
    BartModel,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import twinprobe
from models.llama_release import LlamaRelease
from support import slow
from twinprobe._cli import main
from twinprobe._runs.run import Run, open_run
from twinprobe.torch import record

Body = Callable[[nn.Module], Any]
Form = tuple[Callable[[], nn.Module], Body]
LAYER = "model.layers.1.self_attn"


class Recorded(Trainer):
    """HF's Trainer, its steps recorded."""

    def training_step(self, model: nn.Module, *given: Any, **more: Any) -> Tensor:
        with record(model, self.args.output_dir, level="mix", task="statistics"):
            return super().training_step(model, *given, **more)


def trained(folder: Path, model: nn.Module) -> Run:
    data = [{"input_ids": ids, "labels": ids} for ids in IDS]
    options = TrainingArguments(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=2, report_to=[], use_cpu=True, seed=0,
        save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    Recorded(model=model, args=options, train_dataset=data).train()
    return open_run(next(folder.rglob("dump.json")))


class Lora(nn.Module):
    """A linear layer with an adapter, its parts named as PEFT names them."""

    def __init__(self, base: nn.Linear, scaling: float) -> None:
        super().__init__()
        torch.manual_seed(5)
        width = base.out_features, base.in_features
        self.base_layer, self.scaling = base, scaling
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.lora_A = nn.ModuleDict({"default": nn.Linear(width[1], 4, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(4, width[0], bias=False)})

    def forward(self, hidden: Tensor) -> Tensor:
        given = self.base_layer(hidden)
        lora_a, lora_b, dropout = self.lora_A["default"], self.lora_B["default"], self.lora_dropout["default"]
        return given + lora_b(lora_a(dropout(hidden))) * self.scaling

    def merged(self, scaling: float) -> nn.Linear:
        self.base_layer.weight.data += scaling * self.lora_B["default"].weight @ self.lora_A["default"].weight
        return self.base_layer


class Inner(nn.Module):
    """What PEFT calls ``base_model``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        return self.model(**inputs)


class Peft(nn.Module):
    """What PEFT wraps around a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = Inner(model)

    def forward(self, **inputs: Any) -> Any:
        return self.base_model(**inputs)


def adapted() -> nn.Module:
    model = llama()
    for layer in model.model.layers:
        layer.self_attn.q_proj = Lora(layer.self_attn.q_proj, 2.0)
    return Peft(model)


def merged(scaling: float = 2.0) -> nn.Module:
    model = llama()
    for number, layer in enumerate(model.model.layers):
        used = scaling if number == 1 else 2.0
        layer.self_attn.q_proj = Lora(layer.self_attn.q_proj, 2.0).merged(used)
    return model


def grouped_heads(attention: str) -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation=attention, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def repeated_heads() -> nn.Module:
    """Keys and values repeated for every query head before sdpa is called, as transformers did up to 4.46."""
    from transformers import AttentionInterface

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        keys, values = (one.repeat_interleave(2, dim=1) for one in (key, value))
        given = functional.scaled_dot_product_attention(query, keys, values, is_causal=True, scale=options["scaling"])
        return given.transpose(1, 2).contiguous(), None

    AttentionInterface.register("repeated", attention)
    return grouped_heads("repeated")


def native_heads() -> nn.Module:
    from transformers import AttentionInterface

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        given = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=options["scaling"], enable_gqa=True
        )
        return given.transpose(1, 2).contiguous(), None

    AttentionInterface.register("native", attention)
    return grouped_heads("native")


FORMS: dict[str, tuple[Form, Form]] = {
    "repeated and native key heads": ((repeated_heads, step), (native_heads, step)),
    "key heads in parts and in one": ((lambda: grouped_heads("eager"), step), (native_heads, step)),
    "compiled": ((lambda: Wrapper(torch.compile(llama(), backend="eager")), step), (lambda: Wrapper(llama()), step)),
}


@pytest.mark.parametrize("level", ["mix", "L0"])
@pytest.mark.parametrize("name", [*[name for name in FORMS if name != "compiled"], *slow("compiled")])
def test_two_forms_agree_and_a_fault_is_found(tmp_path: Path, name: str, level: str) -> None:
    (first, body), (second, other) = FORMS[name]
    target, loss = recorded(tmp_path / "t", first(), body, level)
    golden, same = recorded(tmp_path / "g", second(), other, level)
    assert torch.allclose(loss, same, rtol=1e-5)
    found = compared(target, golden)
    assert found.summary.first is None
    assert found.summary.verdicts["error"] == 0
    assert found.summary.matched > 0
    assert compared(golden, target).summary.first is None
    wrong = first()
    module = "module._orig_mod." if name == "compiled" else ""
    wrong.get_submodule(module + FAULTY).weight.data *= 1.25
    faulty, _ = recorded(tmp_path / "f", wrong, body, level)
    # Of a compiled model only the model itself is a call.
    assert place_of_first(compared(faulty, golden)) == (FAULTY if name != "compiled" else "")


@pytest.mark.slow
@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_compiled_model_meets_the_outermost_calls_of_an_eager_one(
    tmp_path: Path, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiled(name: str, model: nn.Module) -> Run:
        return recorded(tmp_path / name, torch.compile(model, backend="eager"), level=level)[0]

    target, (golden, _) = compiled("t", llama()), recorded(tmp_path / "g", llama(), level=level)
    logits = "Module._orig_mod.LlamaForCausalLM.forward.0.output.0.logits"
    for one, other in ((target, golden), (golden, target)):
        found = compared(one, other)
        assert found.summary.first is None
        assert found.summary.verdicts["error"] == 0
        assert any("the whole model as a single call" in note for note in found.summary.notes)
    assert matched(target, golden)[logits] == "Module.lm_head.Linear.forward.0.output.0"
    first = compared(compiled("w", broken(llama())), golden).summary.first
    assert first is not None
    assert first.row == logits if level == "L0" else first.op.startswith("Module._orig_mod.")
    # An eager run of another model shares no input.
    other, _ = recorded(tmp_path / "o", llama(), lambda model: step(model, OTHER_IDS), level)
    assert main(["compare", "-tp", str(target.path), "-gp", str(other.path), "-o", str(tmp_path / "out")]) == 2
    assert "nothing to compare" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("level", ["mix", "L0"])
@pytest.mark.parametrize("way", ["torch.compile", "Module.compile"])
def test_compiled_blocks_meet_eager_ones(tmp_path: Path, level: str, way: str) -> None:
    def compiled(model: nn.Module) -> nn.Module:
        torch.compiler.reset()
        for at, layer in enumerate(model.model.layers):
            if way == "Module.compile":
                layer.compile(backend="eager")
            else:
                model.model.layers[at] = torch.compile(layer, backend="eager")
        return model

    golden, loss = recorded(tmp_path / "g", llama(), level=level)
    target, same = recorded(tmp_path / "t", compiled(llama("sdpa")), level=level)
    assert torch.allclose(loss, same, rtol=1e-5)
    for one, other in ((target, golden), (golden, target)):
        found = compared(one, other)
        assert found.summary.first is None
        assert found.summary.verdicts["error"] == 0
        assert found.summary.matched > 0.7 * target.table.height
    wrong, _ = recorded(tmp_path / "w", compiled(broken(llama("sdpa"))), level=level)
    assert place_of_first(compared(wrong, golden)) == "model.layers.1"  # nothing inside is recorded


@pytest.mark.slow
def test_the_trainer_with_either_attention(tmp_path: Path) -> None:
    golden, target = trained(tmp_path / "g", llama()), trained(tmp_path / "t", llama("sdpa"))
    assert compared(target, golden).summary.first is None
    assert place_of_first(compared(trained(tmp_path / "w", broken(llama("sdpa"))), golden)) == FAULTY


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_an_adapter_meets_the_layer_it_was_merged_into(tmp_path: Path, level: str) -> None:
    golden, loss = recorded(tmp_path / "g", adapted(), level=level)
    target, same = recorded(tmp_path / "t", merged(), level=level)
    assert torch.allclose(loss, same, rtol=1e-5)
    row = f"Module.{LAYER}.q_proj.Linear.forward.0.output.0"
    assert matched(target, golden)[row] == f"Module.base_model.model.{LAYER}.q_proj.Lora.forward.0.output.0"
    for one, two in ((target, golden), (golden, target)):
        assert compared(one, two).summary.first is None
    wrong, _ = recorded(tmp_path / "w", merged(scaling=1.0), level=level)
    for one, two in ((wrong, golden), (golden, wrong)):
        assert place_of_first(compared(one, two)) == f"{LAYER}.q_proj"


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_swapped_weights_of_renamed_layers_are_not_paired_crosswise(tmp_path: Path, level: str) -> None:
    published = llama()
    model = LlamaRelease(published.config, 3)
    model.copy_from(published, [0, 1, 2])
    part = model.layers[1].attention
    part.wq.weight.data, part.wk.weight.data = part.wk.weight.data.clone(), part.wq.weight.data.clone()
    golden, _ = recorded(tmp_path / "g", published, lambda known: known(input_ids=IDS).logits.mean().backward(), level)
    target, _ = recorded(tmp_path / "t", model, lambda known: known(IDS).mean().backward(), level)
    pairs = matched(target, golden)
    for mine, theirs in (("wq", "q_proj"), ("wk", "k_proj"), ("wv", "v_proj")):
        row = f"Module.layers.1.attention.{mine}.Linear.forward.0.output.0"
        assert pairs[row] == f"Module.{LAYER}.{theirs}.Linear.forward.0.output.0"
    assert place_of_first(compared(target, golden)) in ("layers.1.attention.wq", "layers.1.attention.wk")


class Stage(nn.Module):
    """The last two layers of a model, under the numbers that they have in it or counted from 0."""

    def __init__(self, whole: nn.Module, first: int) -> None:
        super().__init__()
        self.model = nn.Module()
        layers = {str(first + at): layer for at, layer in enumerate(whole.model.layers[1:])}
        self.model.layers = nn.ModuleDict(layers)
        self.model.norm, self.lm_head = whole.model.norm, whole.lm_head

    def forward(self, hidden: Tensor, **given: Any) -> Tensor:
        for layer in self.model.layers.values():
            hidden = layer(hidden, **given)
        return self.lm_head(self.model.norm(hidden))


@pytest.mark.parametrize("first", [1, 0])
@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_pipeline_stage_against_the_whole_model(tmp_path: Path, level: str, first: int) -> None:
    whole = llama()
    kept: dict[str, Any] = {}
    handle = whole.model.layers[1].register_forward_pre_hook(
        lambda _, inputs, given: kept.update(hidden=inputs[0].detach(), given=given), with_kwargs=True
    )
    golden, _ = recorded(tmp_path / "g", whole, lambda model: model(input_ids=IDS).logits.mean().backward(), level)
    handle.remove()
    given = {name: value for name, value in kept["given"].items() if name != "hidden_states"}

    def body(model: nn.Module) -> None:
        model(kept["hidden"].requires_grad_(), **given).mean().backward()

    target, _ = recorded(tmp_path / "t", Stage(llama(), first), body, level)
    for one, other in ((target, golden), (golden, target)):
        found = compared(one, other)
        assert found.summary.first is None
        assert found.summary.verdicts["error"] == 0
        assert found.summary.matched > 0.9 * target.table.height - 10
    wrong, _ = recorded(tmp_path / "w", Stage(broken(llama()), first), body, level)
    assert place_of_first(compared(wrong, golden)) == FAULTY.replace("1", str(first))


def bart(change: bool = False) -> nn.Module:
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, dropout=0.0,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    model = BartModel(config)
    if change:
        layer = model.decoder.layers[0].fc1
        known = layer.forward
        layer.forward = lambda hidden: known((hidden + 1) - 1)
    return model.eval()  # without layers dropped at random


def decoded(steps: int, warm_up: bool = False) -> Body:
    """The encoder once, the decoder step after step."""

    @torch.no_grad()
    def body(model: nn.Module) -> Tensor:
        if warm_up:
            model.encoder(input_ids=IDS[:1, :4])
        hidden = model.encoder(input_ids=IDS).last_hidden_state
        given = [
            model.decoder(input_ids=IDS[:, : at + 1], encoder_hidden_states=hidden).last_hidden_state
            for at in range(steps)
        ]
        return given[-1]

    return body


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_decoder_in_a_loop(tmp_path: Path, level: str) -> None:
    golden, given = recorded(tmp_path / "g", bart(), decoded(3), level)
    target, same = recorded(tmp_path / "t", bart(change=True), decoded(3, warm_up=True), level)
    assert torch.allclose(given, same, atol=1e-5)
    assert compared(target, golden).summary.first is None
    wrong = bart(change=True)
    wrong.decoder.layers[1].fc2.weight.data *= 1.25
    faulty, _ = recorded(tmp_path / "w", wrong, decoded(3, warm_up=True), level)
    assert place_of_first(compared(faulty, golden)) == "decoder.layers.1.fc2"


def bert() -> nn.Module:
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=16,
    )  # fmt: skip
    return BertForMaskedLM(config)


def gpt2() -> nn.Module:
    """The layers of BERT in its order, but for a norm that begins a block where BERT's ends one."""
    torch.manual_seed(2)
    config = GPT2Config(
        vocab_size=64, n_embd=32, n_inner=48, n_layer=3, n_head=4, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)


@pytest.mark.parametrize("model", [llama, gpt2])
@pytest.mark.parametrize("level", ["mix", "L0"])
def test_two_models_of_one_size_and_another_build_are_nothing_to_compare(
    tmp_path: Path, level: str, model: Callable[[], nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    target, _ = recorded(tmp_path / "t", model(), level=level)
    golden, _ = recorded(tmp_path / "g", bert(), level=level)
    for one, other in ((target, golden), (golden, target)):
        assert not _met(one, other)
        code = main(["compare", "-tp", str(one.path), "-gp", str(other.path), "-o", str(tmp_path / "out")])
        assert code == 2
        assert "nothing to compare" in capsys.readouterr().err


def _met(target: Run, golden: Run) -> int:
    pairs = match(target, golden)
    return int(((pairs.target >= 0) & (pairs.golden >= 0)).sum())


class _Flat(nn.Module):
    """Attention beside an MLP, as parts of one block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(16), nn.Linear(16, 48)
        self.proj, self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm(x)
        q, k, v = self.qkv(n).chunk(3, -1)
        return x + self.proj(functional.scaled_dot_product_attention(q, k, v)) + self.down(functional.gelu(self.up(n)))


class _Attention(nn.Module):
    def __init__(self, flat: _Flat) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.out = flat.proj
        for at, layer in enumerate((self.query, self.key, self.value)):
            layer.load_state_dict({name: one.chunk(3)[at] for name, one in flat.qkv.state_dict().items()})

    def forward(self, n: Tensor) -> Tensor:
        q, k, v = self.query(n), self.key(n), self.value(n)
        return self.out(functional.scaled_dot_product_attention(q, k, v))


class _Nested(nn.Module):
    """The same, each in a module of its own."""

    def __init__(self, flat: _Flat) -> None:
        super().__init__()
        self.ln, self.attn = flat.norm, _Attention(flat)
        self.mlp = nn.Sequential(flat.up, nn.GELU(), flat.down)

    def forward(self, x: Tensor) -> Tensor:
        n = self.ln(x)
        return self.attn(n) + self.mlp(n) + x


def test_attention_beside_an_mlp_flat_and_in_modules_of_their_own(tmp_path: Path) -> None:
    """Layers that read one tensor stand side by side in one of the two alone; as they ran, all of them meet."""
    torch.manual_seed(0)
    blocks = [_Flat(), _Flat()]
    x = torch.randn(2, 5, 16)
    models = {"target": nn.Sequential(*blocks), "golden": nn.Sequential(*map(_Nested, blocks))}
    for name, model in models.items():
        with twinprobe.record(model, tmp_path / name, level="mix"):
            model(x).square().mean().backward()
    dumps = [next((tmp_path / name / "step0").glob("*/dump.json")) for name in models]
    table = twinprobe.align(*dumps).table
    paired = {tuple(target): tuple(golden) for target, golden in table.select("target", "golden").rows()}
    assert paired["Module.0.proj.Linear.forward.0",] == ("Module.0.attn.out.Linear.forward.0",)
    assert twinprobe.compare(*dumps).first is None


class _ByFormula(_Flat):
    scale = 0.25

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm(x)
        q, k, v = self.qkv(n).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)) * self.scale
        return x + self.proj(scores.softmax(-1) @ v) + self.down(functional.gelu(self.up(n)))


@pytest.mark.parametrize("wrong", [False, True])
def test_a_fault_is_not_another_way_to_what_an_optimizer_reads(tmp_path: Path, wrong: bool) -> None:
    """Behind the loss comes an optimizer: parameters and moments agree there, whatever went before."""
    dumps, x = [], torch.randn(2, 5, 16)
    for name in ("target", "golden"):
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(_ByFormula(), _ByFormula(), nn.Linear(16, 7))
        if name == "golden":
            model = nn.Sequential(*map(_Nested, model[:2]), model[2])  # type: ignore[index]
        elif wrong:
            model[1].scale = 0.2  # type: ignore[index]
        optimizer = torch.optim.AdamW(model.parameters())
        with twinprobe.record(model, tmp_path / name, level="mix"):
            scores = model(x)[:, :-1].reshape(-1, 7)
            functional.cross_entropy(scores, torch.arange(8) % 7).backward()
            optimizer.step()
        dumps.append(next((tmp_path / name / "step0").glob("*/dump.json")))
    result = twinprobe.compare(*dumps)
    assert (result.first is not None) == wrong
    if wrong:
        assert result.first.op == "Tensor.__matmul__.3.forward"


class _Branches(nn.Module):
    """Two convolutions that are added up, or the one that they are folded into."""

    def __init__(self) -> None:
        super().__init__()
        self.wide: nn.Module | None = nn.Conv2d(3, 3, 3, padding=1)
        self.narrow, self.folded, self.act = nn.Conv2d(3, 3, 1), nn.Identity(), nn.ReLU()

    def fold(self, *, biases: bool = True) -> None:
        assert isinstance(self.wide, nn.Conv2d)
        folded, self.wide = self.wide, None
        with torch.no_grad():
            folded.weight[:, :, 1:2, 1:2] += self.narrow.weight
            folded.bias += self.narrow.bias if biases else 0.0  # type: ignore[operator]
        self.folded = folded

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.folded(x) if self.wide is None else self.wide(x) + self.narrow(x))


@pytest.mark.parametrize("level", ["mix", "L0"])
@pytest.mark.parametrize("wrong", [False, True])
def test_branches_folded_into_one_layer_are_compared_by_what_encloses_them(
    tmp_path: Path, level: str, wrong: bool
) -> None:
    x = torch.randn(2, 3, 8, 8)
    for name in ("target", "golden"):
        torch.manual_seed(0)
        model = nn.Sequential(*(_Branches() for _ in range(4)))
        for place, block in enumerate(model if name == "target" else ()):
            block.fold(biases=not wrong or place != 2)  # type: ignore[operator]
        with torch.no_grad(), record(model, str(tmp_path / name), level=level):
            model(x)
    result = twinprobe.compare(tmp_path / "target", tmp_path / "golden")
    assert (result.first is not None) == wrong, result.summary
    assert not wrong or result.first.module.startswith("2"), result.summary


class _Adapted(nn.Module):
    """A layer with a low-rank adapter beside it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.down, self.up = layer, nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.up(self.down(x))


class _Projections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in "qkvo")

    def forward(self, x: Tensor) -> Tensor:
        return x + self.o(functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))


def test_adapters_of_other_layers_are_no_parameters_that_differ(tmp_path: Path) -> None:
    """An adapter of k is not the adapter of v with other weights: it is in one run only."""
    x = torch.randn(2, 5, 16)
    for name, adapted in (("target", "qk"), ("golden", "qv")):
        torch.manual_seed(0)
        model = nn.Sequential(*(_Projections() for _ in range(3)))
        for block in model:
            for part in adapted:
                torch.manual_seed(ord(part))
                setattr(block, part, _Adapted(getattr(block, part)))
        with torch.no_grad(), record(model, str(tmp_path / name), level="L0"):
            model(x)
    found = twinprobe.compare(tmp_path / "target", tmp_path / "golden").first
    assert found.module.startswith("0")
    assert "parameter" not in found.sentence
