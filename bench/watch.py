"""Watching: what it costs, and whether the step and the cause are found where two trainings part.

    PYTHONPATH=src python bench watch                     # the cost of a step, CUDA if there is one, else the CPU
    PYTHONPATH=src python bench watch --parting           # the table of changed trainings
    PYTHONPATH=src python bench watch --parting --only gpt2 --full

The cost: the 16-layer Llama of record.py on CUDA (mark: 1.05x), the small one on the CPU (mark: 1.10x).
The table: real trainings of 60 steps, in which one thing is changed at a chosen step; the step must be right in all of
them and the cause in nine of ten.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

STEPS, SAMPLES, BATCH = 60, 64, 4


# Models and data.


def llama() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
                         num_attention_heads=4, attention_dropout=0.1, max_position_embeddings=32)  # fmt: skip
    return LlamaForCausalLM(config), _tokens(128)


def gpt2() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=128, n_embd=32, n_layer=3, n_head=4, n_positions=32)
    return GPT2LMHeadModel(config), _tokens(128)


def resnet() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=4, layer_type="basic")
    model = ResNetForImageClassification(config)
    model.classifier = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4))
    generator = torch.Generator().manual_seed(5)
    pictures = torch.randn(SAMPLES, 3, 32, 32, generator=generator)
    return model, {"pixel_values": pictures, "labels": torch.randint(0, 4, (SAMPLES,), generator=generator)}


def _tokens(vocabulary: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, vocabulary, (SAMPLES, 16), generator=torch.Generator().manual_seed(5))
    return {"input_ids": tokens, "labels": tokens}


MODELS = {"llama": llama, "gpt2": gpt2, "resnet": resnet}


# What is changed, and the cause that is to be named.


class Change:
    """One thing that happens before a step; ``data`` changes the order of the samples instead."""

    def __init__(self, cause: str, act: Callable[[torch.nn.Module, Any], None] | None = None, data: str = "") -> None:
        self.cause, self.act, self.data = cause, act, data


def _set(key: str, factor: float) -> Callable[[torch.nn.Module, Any], None]:
    def act(_: torch.nn.Module, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group[key] *= factor

    return act


def _block(model: torch.nn.Module) -> torch.nn.Module:
    """The second block."""
    for path in ("model.layers", "transformer.h", "resnet.encoder.stages"):
        with contextlib.suppress(AttributeError):
            return model.get_submodule(path)[1]
    raise LookupError


def _other_kernel(model: torch.nn.Module, _: Any) -> None:
    """The same sums in another order: each linear or convolution of one block computes in two halves."""
    for module in _block(model).modules():
        weight = getattr(module, "weight", None)
        if weight is None or weight.dim() < 2:
            continue

        def halves(x: torch.Tensor, module: Any = module) -> torch.Tensor:
            if isinstance(module, torch.nn.Conv2d):
                middle = x.shape[1] // 2
                how = (None, module.stride, module.padding)
                parts = [torch.nn.functional.conv2d(x[:, a:b], module.weight[:, a:b], *how)
                         for a, b in ((0, middle), (middle, x.shape[1]))]  # fmt: skip
                return parts[0] + parts[1]
            matrix = module.weight.t() if isinstance(module, torch.nn.Linear) else module.weight
            middle = x.shape[-1] // 2
            found = x[..., :middle] @ matrix[:middle] + x[..., middle:] @ matrix[middle:]
            return found if module.bias is None else found + module.bias

        module.forward = halves


def _lower(model: torch.nn.Module, _: Any) -> None:
    """One block computes in bfloat16 from here on."""
    block = _block(model)
    original = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            found = original(*args, **kwargs)
        return found.float() if isinstance(found, torch.Tensor) else tuple(
            one.float() if isinstance(one, torch.Tensor) else one for one in found
        )  # fmt: skip

    block.forward = forward


CHANGES = {
    "learning rate": Change("learning rate", _set("lr", 3.0)),
    "weight decay": Change("weight decay", _set("weight_decay", 5.0)),
    "batch order": Change("data order", data="batches"),
    "sample order": Change("data order", data="samples"),
    "seed": Change("random numbers", lambda *_: torch.manual_seed(99)),
    "kernel": Change("kernel", _other_kernel),
    "dtype": Change("dtype", _lower),
}


def _order(change: Change | None, at: int) -> list[int]:
    """Which sample is taken when; the same samples in every epoch of the whole training."""
    order = [sample for epoch in range(STEPS * BATCH // SAMPLES + 1)
             for sample in random.Random(epoch).sample(range(SAMPLES), SAMPLES)][: STEPS * BATCH]  # fmt: skip
    if change is not None and change.data:
        tail = order[at * BATCH :]
        if change.data == "batches":
            batches = [tail[k : k + BATCH] for k in range(0, len(tail), BATCH)]
            batches = batches[1:] + batches[:1]
            tail = [sample for batch in batches for sample in batch]
        else:
            tail = tail[1:] + tail[:1]
        order[at * BATCH :] = tail
    return order


class Samples(torch.utils.data.Dataset[Any]):
    """The samples in a given order."""

    def __init__(self, data: dict[str, torch.Tensor], order: list[int]) -> None:
        self._data, self._order = data, order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {name: values[self._order[at]] for name, values in self._data.items()}


# Three ways to train.


def plain(model: Any, data: Any, folder: Path | None, change: Any, at: int, level: str) -> None:
    import twinprobe

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    loader = torch.utils.data.DataLoader(Samples(data, _order(change, at)), batch_size=BATCH)
    recording: Any = contextlib.nullcontext() if folder is None else twinprobe.record(model, folder, level=level)
    with recording as record:
        for step, batch in enumerate(loader):
            if step == at and change is not None and change.act is not None:
                change.act(model, optimizer)
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if record is not None:
                record.step()


def hugging_face(model: Any, data: Any, folder: Path | None, change: Any, at: int, level: str) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from twinprobe.torch import HuggingFaceCallback

    class Changing(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(
            self, _: Any, state: Any, *__: Any, model: Any = None, optimizer: Any = None, **___: Any
        ) -> None:
            if state.global_step == at and change is not None and change.act is not None:
                change.act(model, optimizer)

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=1e-3,
        weight_decay=0.1, report_to=[], save_strategy="no", logging_strategy="no", use_cpu=True, disable_tqdm=True,
        lr_scheduler_type="constant", seed=7, dataloader_num_workers=0,
    )  # fmt: skip

    class InOrder(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(self.train_dataset, batch_size=BATCH)

    callbacks = [Changing()] + ([HuggingFaceCallback(dump_path=str(folder), level=level)] if folder is not None else [])
    InOrder(model=model, args=arguments, train_dataset=Samples(data, _order(change, at)), callbacks=callbacks).train()


def lightning(model: Any, data: Any, folder: Path | None, change: Any, at: int, level: str) -> None:
    import logging
    import warnings

    import lightning.pytorch as pl

    from twinprobe.torch import LightningCallback

    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, at_step: int) -> Any:
            if at_step == at and change is not None and change.act is not None:
                change.act(self.model, self.optimizers().optimizer)
            return self.model(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.1)

    callbacks = [LightningCallback(dump_path=str(folder), level=level)] if folder is not None else []
    trainer = pl.Trainer(max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False,
                         callbacks=callbacks, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    model.train()
    trainer.fit(Module(), torch.utils.data.DataLoader(Samples(data, _order(change, at)), batch_size=BATCH))


LOOPS = {"plain": plain, "hugging_face": hugging_face, "lightning": lightning}


def train(
    model: str, loop: str, folder: Path | None, change: str = "", at: int = 0, level: str = "watch"
) -> torch.nn.Module:  # fmt: skip
    """Train, with one thing changed before step ``at``; returns the trained model."""
    torch.manual_seed(3)
    network, data = MODELS[model]()
    network.train()
    torch.manual_seed(4)
    LOOPS[loop](network, data, folder, CHANGES[change] if change else None, at, level)
    return network


def cases(only: str = "") -> Iterator[tuple[str, str, str, int]]:
    """All models, loops and changes, each changed at a step of its own."""
    chooser = random.Random(2)
    for model in MODELS:
        for loop in LOOPS:
            for change in CHANGES:
                at = chooser.randrange(5, STEPS - 5)
                if only in f"{model} {loop} {change}":
                    yield model, loop, change, at


def parting(only: str, level: str) -> int:
    """Print the table; the exit code is 1 where a mark is missed."""
    from twinprobe._compare.steps import compare_steps

    root = Path(tempfile.mkdtemp(prefix="bench_watch_"))
    goldens: dict[tuple[str, str], Path] = {}
    count = right_step = right_cause = 0
    try:
        for model, loop, change, at in cases(only):
            golden = goldens.get((model, loop))
            if golden is None:
                golden = goldens[model, loop] = root / f"{model}_{loop}"
                with _quiet():
                    train(model, loop, golden, level=level)
            folder = root / f"run{count}"
            with _quiet():
                train(model, loop, folder, change, at, level)
            found = compare_steps(folder, golden).parting
            shutil.rmtree(folder)
            expected = {CHANGES[change].cause}
            if level != "watch" and change == "sample order":
                expected.add("data")  # statistics of whole numbers do not tell one order from another
            steps, causes = found.step == at, found.cause in expected
            count, right_step, right_cause = count + 1, right_step + steps, right_cause + causes
            marks = f"{'ok' if steps else 'WRONG':5} {'ok' if causes else 'WRONG':5}"
            print(f"{model:7} {loop:13} {change:14} step {at:2d}  {marks} {found.sentence}", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"right step: {right_step} of {count}; right cause: {right_cause} of {count}")
    return int(right_step < count or right_cause < 0.9 * count)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):  # noqa: PTH123
        yield


# The cost.


def cost(device: str, steps: int, rounds: int) -> int:
    """Print how long a step takes alone and watched: in turns, so that both see the same machine."""
    import twinprobe
    from record import BIG, SMALL, Bench

    bench = Bench(device, BIG if device == "cuda" else SMALL)

    def row() -> float:
        def work() -> None:
            for _ in range(steps):
                bench.step()

        return bench.timed(work) / steps

    folder = Path(tempfile.mkdtemp(prefix="bench_watch_"))
    alone, watched = [], []
    try:
        row()
        for number in range(rounds):
            alone.append(row())
            with twinprobe.record(bench.model, folder / str(number), level="watch"):
                bench.step()
                watched.append(row())
        size = sum(file.stat().st_size for file in folder.rglob("*.arrows")) / (rounds * (steps + 1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ratios = [b / a for a, b in zip(alone, watched, strict=True)]
    mark = 1.05 if device == "cuda" else 1.10
    ratio = statistics.median(ratios)
    print(f"torch {torch.__version__}, {device}: {rounds} rounds of {steps} steps in a row")
    print(f"plain {statistics.median(alone):.2f} ms, watched {statistics.median(watched):.2f} ms: {ratio:.3f}x "
          f"(rounds {min(ratios):.3f}x to {max(ratios):.3f}x; mark {mark}x), {size:.0f} bytes a step")  # fmt: skip
    return int(ratio > mark)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="bench watch", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parting", action="store_true", help="the table of changed trainings instead of the cost")
    parser.add_argument("--only", default="", help="only cases whose name holds this text, e.g. 'gpt2 plain'")
    parser.add_argument(
        "--full", action="store_true", help="full recordings of every step (level L0), not watched ones"
    )
    arguments = parser.parse_args(argv)
    if arguments.parting:
        torch.set_num_threads(1)
        sys.exit(parting(arguments.only, "L0" if arguments.full else "watch"))
    began = time.monotonic()
    code = cost(arguments.device, arguments.steps, arguments.rounds)
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(code)


if __name__ == "__main__":
    main()
