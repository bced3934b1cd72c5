"""Runs without a way back: what is made of the model's outputs is what they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe


class Detector(nn.Module):
    """Scores and boxes of a number of places."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scores, self.boxes = nn.Linear(16, 32), nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, doubled: bool) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tanh(self.body(x))
        boxes = torch.exp(self.boxes(x))
        return self.scores(x), boxes * 2 if doubled else boxes


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Detector()

    def forward(self, x: torch.Tensor, doubled: bool) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = self.inner(x, doubled)
        return found


def compared(folder: Path, level: str = "mix", **changes: Any) -> Any:
    """Detect with a change (the target) and without, and compare."""
    for side, given in (("target", changes), ("golden", {})):
        torch.manual_seed(0)
        model = Nested().eval()
        places = torch.randn(40, 16)
        if given.get("half"):
            model, places = model.bfloat16(), places.bfloat16()
        with twinprobe.record(model, folder / side, level=level), torch.no_grad():
            scores, boxes = model(places, bool(given.get("doubled")))
            scores, boxes = scores.float(), boxes.float()
            scores = scores.sigmoid()
            best = (scores.sigmoid() if given.get("twice") else scores).amax(-1)
            chosen = best.sort(descending=True).indices[:10] if given.get("sorted") else best.topk(10).indices
            boxes = boxes[chosen] * (32 if given.get("stride") else 16)
            while len(boxes) > 1:
                over = torch.minimum(boxes[:1], boxes[1:]).prod(-1) / boxes[:1].prod(-1)
                boxes = boxes[1:][over < 2.0]
    return twinprobe.compare(folder / "target", folder / "golden")


@pytest.mark.parametrize("changes", [{"sorted": True}, {"half": True}], ids=["sort for topk", "bfloat16"])
def test_choices_that_flip_within_rounding_lead_to_other_boxes(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = compared(tmp_path, **changes)
    assert found.first is None, found.summary


@pytest.mark.parametrize(
    ("changes", "call", "reason"),
    [
        ({"twice": True}, "Tensor.sigmoid.1.forward", "only the target run makes this call"),
        ({"stride": True}, "Tensor.__mul__.0.forward", "argument 1: 32 against 16"),
    ],
    ids=["scores", "boxes"],
)
def test_what_is_made_of_the_outputs_is_a_result(
    tmp_path: Path, changes: dict[str, Any], call: str, reason: str
) -> None:
    """Boxes and scores are picked by indexing that nobody records; a box that is left alone is no loss."""
    found = compared(tmp_path, **changes)
    assert found.first is not None, found.summary
    assert found.first.op == call
    assert reason in found.first.sentence


def test_each_result_of_a_module_is_judged(tmp_path: Path) -> None:
    """The scores agree and nothing reads the boxes, where only modules were recorded; no kernel left them unwritten."""
    found = compared(tmp_path, "L0", doubled=True)
    assert found.first is not None, found.summary
    assert found.first.op == "Module.inner.Detector.forward.0"


def labelled(folder: Path, changed: str) -> Any:
    """A tagger is evaluated: the loss leaves padding out, the predictions do not."""
    for side in ("target", "golden"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 16), nn.Linear(16, 5)).eval()
        words, labels = torch.randint(1, 9, (4, 6)), torch.randint(0, 5, (4, 6))
        words[:, 4:], labels[:, 4:] = 0, -100
        if changed == "padding" and side == "target":
            words[:, 4:] = 8
        with twinprobe.record(model, folder / side, level="mix"), torch.no_grad():
            scores = model(words)
            if changed == "softmax":
                scores = scores.softmax(-1) if side == "target" else scores
            else:
                functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
            _ = (scores.argmax(-1) == labels)[labels >= 0].float()
    return twinprobe.compare(folder / "target", folder / "golden")


def test_predictions_for_padding_are_no_result_where_the_loss_agrees(tmp_path: Path) -> None:
    found = labelled(tmp_path, "padding")
    assert found.first is None, found.summary


def test_the_most_probable_has_the_best_score(tmp_path: Path) -> None:
    found = labelled(tmp_path, "softmax")
    assert found.first is None, found.summary


@pytest.mark.parametrize("hits", ["floats", "whole numbers"])
def test_how_many_predictions_are_right_is_no_loss(tmp_path: Path, hits: str) -> None:
    """Dropout in an evaluation: as many words are named rightly by chance, and the scores are 20 % off."""
    for side in ("target", "golden"):
        torch.manual_seed(0)
        model = nn.ModuleDict({"net": nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 5))})
        model.train(side == "target")
        places, labels = torch.randn(12, 8), torch.full((12,), 7)  # a label that no prediction meets
        with twinprobe.record(model, tmp_path / side, level="mix"), torch.no_grad():
            right = model["net"](places).argmax(-1) == labels
            _ = right.float().sum() / 12 if hits == "floats" else right.sum() / len(right)
    found = twinprobe.compare(tmp_path / "target", tmp_path / "golden")
    assert found.first is not None, found.summary
    assert "training: True against False" in found.first.sentence
    assert "loss agrees" not in found.summary
