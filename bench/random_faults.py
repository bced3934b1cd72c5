"""Random faults in random models: does the judge name the module, and is it silent where nothing is wrong?

    python bench random_faults [--seed 0] [--count 60] [--level mix] [--task statistics] [--later 0] [--clean]

Each case draws a small model of transformers or of torch.nn, a harmless difference between the two runs (none, eager
against sdpa attention, bf16 on both sides, bf16 or autocast against float32), an optimizer, and in three of four cases
a fault in a module that it draws as well. With ``--later N`` the runs agree for N steps before the fault. Unlike
``bench judge``, whose cases guided the rules, nobody has chosen these. A fault that changes less than the dtype
rounds is no miss: the losses are printed so that one can tell.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS, WIDTH = 99, 64
VARIANTS = ("same", "same", "sdpa", "bf16", "bf16 sdpa", "bf16 against float32", "autocast against float32")


@dataclass
class Fault:
    """What is wrong, where, and how to make it so."""

    what: str
    module: str
    apply: Callable[[Any], None]


def models() -> dict[str, tuple[Callable[[], Any], str]]:
    """Small models by name: how they are built, and what they read."""
    import transformers as hf

    sizes = {
        "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 128, "max_position_embeddings": 64,
    }  # fmt: skip
    grouped = sizes | {"num_key_value_heads": 2}
    image = {"hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128,
             "image_size": 32, "patch_size": 8}  # fmt: skip
    causal = {
        "Llama": grouped, "Qwen2": grouped, "Qwen3": grouped | {"head_dim": 16}, "Mistral": grouped,
        "Gemma2": grouped | {"head_dim": 16}, "Phi": sizes, "GPTNeoX": sizes,
        "Mixtral": grouped | {"num_local_experts": 4},
        "Mamba": {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 3, "state_size": 8},
        "Bloom": {"vocab_size": WORDS, "hidden_size": WIDTH, "n_layer": 3, "n_head": 4},
        "OPT": {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4,
                "ffn_dim": 128, "max_position_embeddings": 64, "word_embed_proj_dim": WIDTH},
    }  # fmt: skip
    found: dict[str, tuple[Callable[[], Any], str]] = {}

    def add(name: str, head: str, config: dict[str, Any], reads: str) -> None:
        found[name.lower()] = (
            lambda: getattr(hf, f"{name}{head}")(getattr(hf, f"{name}Config")(**config)),
            reads,
        )

    for name, config in causal.items():
        add(name, "ForCausalLM", config, "text")
    add(
        "GPT2",
        "LMHeadModel",
        {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 3, "n_head": 4, "n_positions": 64},
        "text",
    )
    for name in ("Bert", "Roberta", "Electra", "Albert"):
        extra = {"embedding_size": 32} if name in ("Electra", "Albert") else {}
        add(name, "ForSequenceClassification", sizes | extra, "classes")
    add("DistilBert", "ForSequenceClassification",
        {"vocab_size": WORDS, "dim": WIDTH, "n_layers": 3, "n_heads": 4, "hidden_dim": 128}, "classes")  # fmt: skip
    add("T5", "ForConditionalGeneration",
        {"vocab_size": WORDS, "d_model": WIDTH, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16,
         "decoder_start_token_id": 0}, "pairs")  # fmt: skip
    add("Bart", "ForConditionalGeneration",
        {"vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
         "max_position_embeddings": 64}, "pairs")  # fmt: skip
    add("ViT", "ForImageClassification", image, "images")
    add("Swin", "ForImageClassification",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        "images")  # fmt: skip
    add("ConvNext", "ForImageClassification",
        {"hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2, "patch_size": 2}, "images")  # fmt: skip
    add("ResNet", "ForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2], "layer_type": "basic"},
        "images")  # fmt: skip
    return found


def batch_of(reads: str) -> dict[str, Any]:
    """Inputs and labels."""
    import torch

    words = torch.randint(3, WORDS, (2, 17))
    labels = torch.tensor([0, 1])
    return {
        "text": {"input_ids": words, "labels": words},
        "classes": {"input_ids": words, "labels": labels},
        "pairs": {"input_ids": words, "labels": torch.randint(3, WORDS, (2, 9))},
        "images": {"pixel_values": torch.randn(2, 3, 32, 32), "labels": labels},
    }[reads]


def built(build: Callable[[], Any], seed: int, attention: str) -> Any:
    """The model with weights that are no identity, and without dropout."""
    import torch

    torch.manual_seed(seed)
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif parameter.std() < 0.05:
                parameter.mul_(2.0)
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    with contextlib.suppress(Exception):  # a model without a choice of attention
        model.set_attn_implementation(attention)
    return model.train()


def draw_fault(rng: random.Random, model: Any) -> Fault:
    """One of the faults that people make, in some module."""
    import torch
    from torch import nn

    modules = [(name, module) for name, module in model.named_modules()
               if name and not isinstance(module, (nn.ModuleList, nn.Dropout, nn.Identity))]  # fmt: skip
    leaves = [(name, module) for name, module in modules if not list(module.children())]
    weighted = [(name, module) for name, module in leaves if getattr(module, "weight", None) is not None]
    biased = [(name, module) for name, module in weighted if getattr(module, "bias", None) is not None]
    norms = [(name, module) for name, module in leaves if hasattr(module, "eps") or hasattr(module, "variance_epsilon")]

    def output(change: Callable[[Any], Any]) -> Callable[[Any], None]:
        def hook(_module: Any, _inputs: Any, out: Any) -> Any:
            first, *rest = out if isinstance(out, tuple) else (out,)
            if not isinstance(first, torch.Tensor) or not first.is_floating_point():
                return None
            return (change(first), *rest) if isinstance(out, tuple) else change(first)

        return lambda module: module.register_forward_hook(hook)

    def weight(change: Callable[[Any], Any]) -> Callable[[Any], None]:
        def apply(module: Any) -> None:
            with torch.no_grad():
                module.weight.copy_(change(module.weight))

        return apply

    def no_bias(module: Any) -> None:
        with torch.no_grad():
            module.bias.zero_()

    def epsilon(module: Any) -> None:
        setattr(module, "eps" if hasattr(module, "eps") else "variance_epsilon", 0.05)

    noise = torch.Generator().manual_seed(5)
    factor = rng.choice([1.02, 1.1, 1.5, -1.0, 0.0])
    choices = [
        (f"output times {factor}", leaves, output(lambda x: x * factor)),
        ("output times 0.8", modules, output(lambda x: x * 0.8)),
        ("output rolled by a token", leaves, output(lambda x: x.roll(1, 1 if x.dim() > 2 else -1))),
        ("2 % of noise in the weight", weighted,
         weight(lambda w: w * (1 + 0.02 * torch.randn(w.shape, generator=noise).to(w.dtype)))),
        ("two rows of the weight exchanged", weighted, weight(lambda w: torch.cat([w[1:2], w[:1], w[2:]]))),
        ("weight reversed", weighted, weight(lambda w: w.flip(-1))),
        ("bias left out", biased, no_bias),
        ("epsilon of a norm 0.05", norms, epsilon),
    ]  # fmt: skip
    what, places, apply = rng.choice([choice for choice in choices if choice[1]])
    return Fault(what, rng.choice(places)[0], apply)


def run_case(number: int, options: argparse.Namespace) -> tuple[bool, bool, str]:
    """Whether the answer is right, whether there was a fault, and a line that tells."""
    import torch

    import twinprobe

    rng = random.Random(number)
    known = models()
    name = rng.choice(sorted(known))
    variant = rng.choice(VARIANTS)
    optimizer = rng.choice(["adamw", "sgd", ""])
    build, reads = known[name]
    fault: Fault | None = None
    losses = []
    folder = Path(tempfile.mkdtemp(prefix="random_faults"))
    for side in ("target", "golden"):
        attention = "sdpa" if "sdpa" in variant and side == "target" else "eager"
        model = built(build, number, attention)
        if side == "target" and not options.clean and rng.random() < 0.75:
            fault = draw_fault(rng, model)
        faulty = fault if side == "target" else None
        coarse = variant.startswith("bf16") and (side == "target" or "against" not in variant)
        if faulty is not None and not options.later:
            faulty.apply(model.get_submodule(faulty.module))
        model.to(torch.bfloat16 if coarse else torch.float32)
        step = {"adamw": lambda ones: torch.optim.AdamW(ones, lr=1e-3),
                "sgd": lambda ones: torch.optim.SGD(ones, lr=1e-2, momentum=0.9)}.get(optimizer)  # fmt: skip
        update = step(model.parameters()) if step else None
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=variant.startswith("autocast") and side == "target")
        with (
            contextlib.redirect_stderr(io.StringIO()),
            twinprobe.record(model, folder / side, level=options.level, task=options.task) as recorder,
        ):
            for at in range(options.later + 1):
                torch.manual_seed(10 * number + at)
                batch = {key: value.to(next(model.parameters()).dtype) if value.is_floating_point() else value
                         for key, value in batch_of(reads).items()}  # fmt: skip
                if faulty is not None and options.later and at == options.later:
                    faulty.apply(model.get_submodule(faulty.module))
                model.zero_grad()
                with autocast:
                    loss = model(**batch).loss
                loss.backward()
                if update is not None:
                    update.step()
                if options.later:
                    recorder.step()
        losses.append(f"{float(loss):.5f}")
    compared = twinprobe.compare(folder / "target", folder / "golden")
    first = compared.first
    shutil.rmtree(folder)
    if fault is None:
        right = first is None
    else:  # a hook that came after the recorder's belongs to the module around
        around = fault.module.rpartition(".")[0] if options.later else fault.module
        right = first is not None and (f"{first.module}.".startswith(f"{around}.") or fault.module in first.op)
    said = "agrees" if first is None else f"{first.module} {first.op}: {first.sentence[:160]}"
    planted = "nothing" if fault is None else f"{fault.what} in {fault.module}"
    return right, fault is not None, f"{number} {name}, {variant}, loss {' and '.join(losses)}; {planted} -> {said}"


def main(words: list[str]) -> None:
    """Run the cases, print what was not right, and the counts."""
    parser = argparse.ArgumentParser(prog="bench random_faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="the first case; each has its own number")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--level", default="mix")
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--later", type=int, default=0, help="steps before the fault")
    parser.add_argument("--clean", action="store_true", help="plant nothing")
    options = parser.parse_args(words)
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts = {True: [0, 0], False: [0, 0]}
    for number in range(options.seed, options.seed + options.count):
        right, planted, line = run_case(number, options)
        counts[planted][0] += right
        counts[planted][1] += 1
        if not right:
            print(line, flush=True)
    print(f"faults: {counts[True][0]} of {counts[True][1]} named; "
          f"clean: {counts[False][0]} of {counts[False][1]} without a claim")  # fmt: skip
