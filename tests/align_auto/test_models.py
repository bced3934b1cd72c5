"""The models written twice are the same models."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from models.catalogue import PAIRS, ModelPair, build  # noqa: E402


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_model_written_again_gives_the_same_outputs(pair: ModelPair) -> None:
    published, own, _ = build(pair)
    inputs = pair.inputs()
    with torch.no_grad():
        mine = own(inputs)
        theirs = published(inputs, labels=inputs).logits if "t5" in pair.name else published(inputs)
    mine = mine[0] if isinstance(mine, tuple) else mine
    theirs = getattr(theirs, "logits", theirs)
    theirs = theirs if isinstance(theirs, torch.Tensor) else theirs[0]
    torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=2e-4)
