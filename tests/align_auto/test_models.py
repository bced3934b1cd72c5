"""The models written twice are the same models."""

from __future__ import annotations

import pytest
import torch

from models.catalogue import PAIRS, ModelPair, build, called
from models.held_out import HELD_OUT
from models.held_out_second import HELD_OUT_SECOND


@pytest.mark.parametrize("pair", [*PAIRS, *HELD_OUT, *HELD_OUT_SECOND], ids=lambda pair: pair.name)
def test_the_model_written_again_gives_the_same_outputs(pair: ModelPair) -> None:
    published, own, _ = build(pair)
    inputs = pair.inputs()
    with torch.no_grad():
        mine = called(own, inputs)
        theirs = published(inputs, labels=inputs).logits if "t5" in pair.name else called(published, inputs)
    mine = mine[0] if isinstance(mine, tuple) else mine
    theirs = getattr(theirs, "logits", theirs)
    theirs = theirs if isinstance(theirs, torch.Tensor) else theirs[0]
    torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=2e-4)
