"""Every kind of tensor is recorded by shape and dtype, and by value as far as values exist."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support import needs
from twinprobe.torch import PrecisionDebugger, record


class Pass(nn.Module):
    """Hands on whatever it gets."""

    def forward(self, value: Any) -> Any:
        return value


def leaf_of(tmp_path: Path, dump_of: Any, value: Any, caplog: Any = None, **options: Any) -> dict[str, Any]:
    model = nn.Sequential(Pass())
    with record(model, tmp_path / "dump", level="L0", **options):
        model(value)
    (entry,) = dump_of(tmp_path / "dump").data.values()
    assert not list((tmp_path / "dump").rglob("dump_error_info.log"))
    assert entry["input_args"][0] == entry["output"][0] or options.get("task") == "tensor"
    return entry["input_args"][0]  # type: ignore[no-any-return]


def four(leaf: dict[str, Any]) -> list[Any]:
    return [leaf[key] for key in ("Max", "Min", "Mean", "Norm")]


VALUES = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
RAGGED = [VALUES[0], VALUES[1, :1]]
MAKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float64": torch.Tensor.double,
    "int64": torch.Tensor.long,
    "uint8": torch.Tensor.byte,
    "bool": torch.Tensor.bool,
    "bfloat16": torch.Tensor.bfloat16,
    "float16": torch.Tensor.half,
    "complex64": lambda values: torch.complex(values, values),
    "conjugated": lambda values: torch.complex(values, values).conj(),
    "negated": lambda values: torch.complex(values, values).conj().imag,
    "float8_e4m3fn": lambda values: values.to(torch.float8_e4m3fn),
    "float8_e5m2": lambda values: values.to(torch.float8_e5m2),
    "sparse": torch.Tensor.to_sparse,
    "twice": lambda _: torch.sparse_coo_tensor([[0, 1, 1], [1, 0, 0]], [1.0, 1.5, 0.5]),  # as gradients of embeddings
    "csr": torch.Tensor.to_sparse_csr,
    "quantized": lambda values: torch.quantize_per_tensor(values, 0.5, 0, torch.qint8),
    "nested": lambda _: torch.nested.nested_tensor(RAGGED),
    "jagged": lambda _: torch.nested.nested_tensor(RAGGED, layout=torch.jagged),
    "meta": lambda values: values.to("meta"),
    "empty": lambda _: torch.empty(0, 3),
    "transposed": torch.Tensor.t,
    "expanded": lambda _: torch.tensor([3.0]).expand(4, 2),
    "strided": lambda _: torch.arange(12.0).reshape(3, 4)[::2, ::3],
    "inference": lambda values: inference(values),  # noqa: PLW0108  defined below
    "subclass": lambda values: Named(values),  # noqa: PLW0108  defined below
    "parameter": nn.Parameter,
    "buffer": getattr(nn, "Buffer", nn.Parameter),
}


def make(kind: str) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MAKERS[kind](VALUES.clone())


class Named(torch.Tensor):
    """A subclass without extras."""


def inference(values: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return values * 1


ROOT5 = math.sqrt(5)
# dtype, shape, the four old statistics, and the fuller ones beside them.
EXPECTED: dict[str, tuple[str, list[int], list[Any], dict[str, Any]]] = {
    "float64": ("float64", [2, 2], [2.0, 0.0, None, None], {"Mean_full": 0.75, "Norm_full": ROOT5}),
    "int64": ("int64", [2, 2], [2, 0, None, None], {"Mean_full": 0.75, "Norm_full": ROOT5}),
    "uint8": ("uint8", [2, 2], [2, 0, None, None], {"Mean_full": 0.75, "Norm_full": ROOT5}),
    "bool": ("bool", [2, 2], [True, False, None, None], {"Mean_full": 0.5, "Norm_full": math.sqrt(2)}),
    "bfloat16": ("bfloat16", [2, 2], [2.0, 0.0, 0.75, 2.234375], {}),
    "float16": ("float16", [2, 2], [2.0, 0.0, 0.75, float(np.float16(ROOT5))], {}),
    "complex64": ("complex64", [2, 2], [math.sqrt(8), 0.0, 0.75 * math.sqrt(2), None], {"Norm_full": math.sqrt(10)}),
    "conjugated": ("complex64", [2, 2], [math.sqrt(8), 0.0, 0.75 * math.sqrt(2), None], {"Norm_full": math.sqrt(10)}),
    "negated": ("float32", [2, 2], [0.0, -2.0, -0.75, ROOT5], {}),
    "float8_e4m3fn": ("float8_e4m3fn", [2, 2], [None] * 4, {"Max_full": 2.0, "Min_full": 0.0}),
    "float8_e5m2": ("float8_e5m2", [2, 2], [None] * 4, {"Max_full": 2.0, "Min_full": 0.0}),
    "sparse": ("float32", [2, 2], [2.0, 0.0, 0.75, ROOT5], {}),
    "twice": ("float32", [2, 2], [2.0, 0.0, 0.75, ROOT5], {}),
    "csr": ("float32", [2, 2], [2.0, 0.0, 0.75, ROOT5], {}),
    "meta": ("float32", [2, 2], [None] * 4, {}),
    "empty": ("float32", [0, 3], [None] * 4, {}),
    "transposed": ("float32", [2, 2], [2.0, 0.0, 0.75, ROOT5], {}),
    "expanded": ("float32", [4, 2], [3.0, 3.0, 3.0, math.sqrt(72)], {}),
    "strided": ("float32", [2, 2], [11.0, 0.0, 5.5, math.sqrt(9 + 64 + 121)], {}),
    "inference": ("float32", [2, 2], [2.0, 0.0, 0.75, ROOT5], {}),
    "subclass": ("float32", [2, 2], [2.0, 0.0, 0.75, ROOT5], {}),
    "parameter": ("float32", [2, 2], [2.0, 0.0, 0.75, ROOT5], {}),
    "buffer": ("float32", [2, 2], [2.0, 0.0, 0.75, ROOT5], {}),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_shape_dtype_and_statistics(tmp_path: Path, dump_of: Any, kind: str) -> None:
    dtype, shape, old, more = EXPECTED[kind]
    leaf = leaf_of(tmp_path, dump_of, make(kind))
    assert (leaf["type"], leaf["dtype"], leaf["shape"]) == ("torch.Tensor", f"torch.{dtype}", shape)
    assert four(leaf) == [None if one is None else pytest.approx(one, rel=1e-6) for one in old]
    for key, value in more.items():
        assert leaf[key] == pytest.approx(value, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["quantized", "nested", "jagged"])
def test_kinds_without_plain_values_do_not_disturb(tmp_path: Path, dump_of: Any, kind: str) -> None:
    leaf = leaf_of(tmp_path, dump_of, make(kind))
    assert leaf["type"].endswith("Tensor")
    assert leaf["dtype"] in {"torch.float32", "torch.qint8"}
    if kind == "quantized":
        assert four(leaf)[:2] == [2.0, 0.0]


@pytest.mark.parametrize(
    ("value", "old"),
    [
        (torch.tensor(3.5), [3.5] * 4),
        (torch.tensor(7), [7] * 4),
        (torch.tensor(True), [True, True, None, None]),
        (torch.tensor(2.0, dtype=torch.float64), [2.0] * 4),
    ],
)
def test_a_number_stands_for_all_four(tmp_path: Path, dump_of: Any, value: torch.Tensor, old: list[Any]) -> None:
    leaf = leaf_of(tmp_path, dump_of, value)
    assert leaf["shape"] == []
    assert four(leaf) == old


def test_not_a_number_and_infinity_are_counted(tmp_path: Path, dump_of: Any) -> None:
    leaf = leaf_of(tmp_path, dump_of, torch.tensor([1.0, float("nan"), float("inf"), float("nan")]))
    assert all(math.isnan(one) for one in four(leaf))
    assert (leaf["NaN_count"], leaf["Inf_count"]) == (2, 1)
    leaf = leaf_of(tmp_path / "two", dump_of, torch.tensor([1.0, float("-inf")]))
    assert (leaf["Max"], leaf["Min"], leaf["Inf_count"]) == (1.0, -math.inf, 1)


def test_a_fake_tensor_has_no_values(tmp_path: Path, dump_of: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3, 4)
    leaf = leaf_of(tmp_path, dump_of, fake)
    assert (leaf["type"], leaf["shape"]) == ("torch._subclasses.fake_tensor.FakeTensor", [3, 4])
    assert four(leaf) == [None] * 4


def test_transformed_tensors_are_named(tmp_path: Path, dump_of: Any) -> None:
    model = nn.Sequential(Pass())
    with record(model, tmp_path / "dump", level="L0"):
        torch.func.vmap(model)(torch.ones(3, 2))
        torch.func.grad(lambda x: model(x).sum())(torch.ones(2))
    data = dump_of(tmp_path / "dump").data
    assert data["Module.0.Pass.forward.0"]["output"][0]["type"] == "BatchedTensor"
    assert data["Module.0.Pass.forward.1"]["output"][0]["type"] == "GradTrackingTensor"


@pytest.mark.parametrize(
    "kind", ["float64", "bfloat16", "complex64", "bool", "transposed", "expanded", "strided", "conjugated"]
)
def test_checksum_and_file_hold_the_same_bytes(tmp_path: Path, dump_of: Any, kind: str) -> None:
    value = make(kind)
    plain = value.resolve_conj().contiguous()
    octets = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    leaf = leaf_of(tmp_path / "md5", dump_of, value, summary_mode="md5")
    assert leaf["md5"] == f"{zlib.crc32(octets):08x}"
    leaf = leaf_of(tmp_path / "tensor", dump_of, value, task="tensor")
    (file,) = (tmp_path / "tensor").rglob(leaf["data_name"])
    stored = torch.load(file)
    assert stored.dtype == value.dtype
    assert stored.is_contiguous()
    assert torch.equal(stored.resolve_conj(), plain)


@pytest.mark.parametrize("kind", ["meta", "empty"])
def test_without_values_there_is_no_file(tmp_path: Path, dump_of: Any, kind: str) -> None:
    leaf = leaf_of(tmp_path, dump_of, make(kind), task="tensor")
    assert "data_name" not in leaf


def test_a_module_of_numpy_values_is_recorded(tmp_path: Path, dump_of: Any) -> None:
    leaf = leaf_of(tmp_path, dump_of, np.array([[1.0, 2.0]], dtype=np.float32))
    assert (leaf["type"], leaf["dtype"], leaf["shape"], leaf["Max"]) == ("numpy.ndarray", "float32", [1, 2], 2.0)
    leaf = leaf_of(tmp_path / "two", dump_of, np.float32(2.5))
    assert leaf == {"type": "float32", "value": 2.5}


def test_the_same_storage_with_other_content_is_measured_again(tmp_path: Path, dump_of: Any) -> None:
    model = nn.Sequential(Pass())
    value = torch.zeros(4)
    with record(model, tmp_path / "dump", level="L0"):
        model(value)
        value.add_(1)
        model(value)
        value.data.add_(1)
        model(value)
        value[:2].mul_(5)
        model(value)
        with torch.no_grad():
            value.set_(torch.full((4,), 9.0))
        model(value)
    data = dump_of(tmp_path / "dump").data
    seen = [entry["input_args"][0]["Max"] for entry in data.values()]
    assert seen == [0.0, 1.0, 2.0, 10.0, 9.0]


@needs("torch", "2.3", "gradients are scaled on the host")
def test_gradients_are_measured_again_after_unscaling(tmp_path: Path, dump_of: Any) -> None:
    """The kernel that takes a loss's scale off the gradients writes to them without a new version."""
    model = nn.Sequential(nn.Linear(4, 3))
    with record(model, tmp_path / "dump", level="L1"):
        model(torch.ones(2, 4)).sum().backward()
        gradients = [one.grad for one in model.parameters()]
        torch._foreach_norm(gradients)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, torch.zeros(1), torch.tensor([0.25]))
        torch._foreach_norm(gradients)
    data = dump_of(tmp_path / "dump").data
    norms = [data[f"Torch._foreach_norm.{call}.forward"]["input_args"][0] for call in (0, 1)]
    assert [one["Norm"] for one in norms[1]] == [0.25 * one["Norm"] for one in norms[0]]


def test_meta_models_can_be_watched(tmp_path: Path, dump_of: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4, device="meta"))
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="mix", task="tensor", summary_mode="md5")
    debugger.start(model=model)
    model(torch.ones(2, 4, device="meta")).sum().backward()
    debugger.stop()
    debugger.close()
    data = dump_of(tmp_path / "dump").data
    assert data["Module.0.Linear.forward.0"]["parameters"]["weight"]["shape"] == [4, 4]
    assert data["Module.0.Linear.backward.0"]["input"][0]["Max"] is None
