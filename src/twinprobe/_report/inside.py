"""Pictures of what is inside the tensors that differ: for the report of a comparison, and for the viewer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from twinprobe._judge.kinds.by_tensors import tensor_kinds
from twinprobe._lazy import polars as pl
from twinprobe._measure.blocks import QUANTILES, TensorSlice, block_summary, usual_cut
from twinprobe._measure.elements import FLOAT64, numbers
from twinprobe._runs.dtypes import COMPLEX
from twinprobe._runs.run import TENSOR_FOLDER
from twinprobe._runs.sketches import TensorSummary, read_summaries
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.tensor_files import open_named
from twinprobe.errors import TwinProbeError

if TYPE_CHECKING:
    from twinprobe._judge.summary import Summary

# A report has pictures of this many rows, and reads this many elements for them.
_MOST_ROWS = 24
_MOST_ELEMENTS = 1 << 24
# Beyond this a difference's kind is not looked for: it takes several passes over all elements.
_MOST_OF_A_KIND = 1 << 20
# A report cannot read on: it has further views of its first rows, over other axes and at so many places of an axis.
_MOST_VIEWS, _PLACES, _VIEW = 96, 16, (16, 24)
# The largest elements of both sides: twelve each, some of them of both.
_MOST_LARGEST = 16
_FILES = re.compile(r"\['(?P<target>[^']+)', '(?P<golden>[^']+)'\]")
_DRAWN = ("factor", "offset", "axis", "by", "indices", "rows", "order", "side")


def picture(
    folders: Sequence[Path], names: Sequence[str], cut: TensorSlice | None = None, *, most: tuple[int, int] = (24, 36)
) -> dict[str, Any]:
    """What is inside two tensors of two dumps, and which kind of difference it is; BadInput says why there is none."""
    target, golden = (open_named(folder, name) for folder, name in zip(folders, names, strict=True))
    if cut is not None:
        return {**block_summary(target, golden, cut, most=most), "kinds": []}
    kinds, cut = _kinds(target, golden), usual_cut(target.shape or (1,))
    axis = kinds[0].get("axis") if kinds else None
    if isinstance(axis, int) and axis not in (cut.rows, cut.columns):
        cut = replace(cut, rows=axis)  # so that what is said of an axis is seen
    return {**block_summary(target, golden, cut, most=most), "kinds": kinds}


def _views(target: HostTensor, golden: HostTensor, whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What sliders and a choice of axes show where no server can read on: every pair of axes, pieces of the others."""
    shape, chosen = whole["shape"], {whole["rows"], whole["columns"]}
    every = tuple((0, size) for size in shape)
    long = [axis for axis, size in enumerate(shape) if size > 1]
    cuts = [TensorSlice(*pair, every) for pair in combinations(long[-4:], 2) if set(pair) != chosen]
    for axis in (candidate for candidate in long if candidate not in chosen):
        edges = [part * shape[axis] // min(_PLACES, shape[axis]) for part in range(min(_PLACES, shape[axis]) + 1)]
        cuts += [
            TensorSlice(whole["rows"], whole["columns"], (*every[:axis], span, *every[axis + 1 :]))
            for span in pairwise(edges)
        ]
    for cut in cuts:
        view = block_summary(target, golden, cut, most=_VIEW)
        yield view | {"points": [side[::4] for side in view["points"]]}


def _kinds(target: HostTensor, golden: HostTensor) -> list[dict[str, Any]]:
    if target.shape != golden.shape or prod(target.shape) > _MOST_OF_A_KIND or {target.dtype, golden.dtype} & COMPLEX:
        return []
    arrays = [numbers(side.dtype, side.data, FLOAT64).reshape(side.shape) for side in (target, golden)]
    return [
        {"name": kind.name, "sentence": kind.sentence,
         **{key: kind.evidence[key] for key in _DRAWN if key in kind.evidence}}
        for kind in tensor_kinds(*arrays)[:3]
    ]  # fmt: skip


Suspect = tuple[str, str, str, str]
"""A key of the caller's own, the files of both tensors, and the shape as it was recorded."""


def pictures(folders: Sequence[Path], suspects: Iterable[Suspect], *, views: int = 0) -> dict[str, dict[str, Any]]:
    """Pictures of the first of these, by key; those whose tensors were not kept, or cannot be read, have none.

    ``views``: how many further views the first of them may have together.
    """
    drawn: dict[str, dict[str, Any]] = {}
    left = _MOST_ELEMENTS
    for key, target, golden, shape in suspects:
        if len(drawn) == _MOST_ROWS or left < 0:
            break
        size = prod(map(int, re.findall(r"\d+", shape)))
        try:
            whole = drawn[key] = picture(folders, (target, golden))
            if views > 0 and len(whole["shape"]) > 2 and size <= _MOST_OF_A_KIND:
                whole["views"] = list(_views(open_named(folders[0], target), open_named(folders[1], golden), whole))
                views -= len(whole["views"])
                left -= 8 * size
        except (TwinProbeError, OSError):
            continue  # the row's own reason says what could not be read
        left -= size
    return drawn


def summary_pictures(dumps: Sequence[Path], suspects: Sequence[tuple[str, str, str]]) -> dict[str, dict[str, Any]]:
    """What is inside tensors that were not kept, from summaries of each side; by key, for a key and both names each."""
    target = read_summaries(dumps[0], {name for _, name, _ in suspects})
    golden = read_summaries(dumps[1], {name for _, _, name in suspects}) if target else {}
    drawn = {}
    for key, name, other in suspects:
        pair = target.get(name), golden.get(other)
        if pair[0] and pair[1] and (pair[0].shape, pair[0].size) == (pair[1].shape, pair[1].size):
            drawn[key] = _side_by_side(pair[0], pair[1])
    return drawn


def _side_by_side(target: TensorSummary, golden: TensorSummary) -> dict[str, Any]:
    """Two summaries in the words of ``picture``. Elements cannot be subtracted any more: ``apart`` says so."""
    pair = (target, golden)
    bins = [(side.histogram.start, side.histogram.counts) for side in pair]
    start = min(first for first, _ in bins)
    end = max(first + len(counts) for first, counts in bins)
    counts = [[0] * (first - start) + counts + [0] * (end - first - len(counts)) for first, counts in bins]
    largest: dict[tuple[int, ...], list[Any]] = {}
    for which, side in enumerate(pair):
        for index, value in side.largest:
            largest.setdefault(tuple(index), [None, None])[which] = value
    return {
        "shape": target.shape, "dtypes": [side.dtype for side in pair], "rows": target.rows, "columns": target.columns,
        "ranges": [[0, size] for size in target.shape], "size": target.size, "elements": prod(target.shape),
        "read": target.read,
        "apart": {way: [msgspec.to_builtins(getattr(side, way)) for side in pair] for way in ("max", "rms", "mean")},
        "histogram": {"from": start, "counts": counts,
                      "zeros": [side.histogram.zeros for side in pair], "odd": [side.histogram.odd for side in pair]},
        "quantiles": {"at": list(QUANTILES), "exact": target.quantiles.exact,
                      "values": [side.quantiles.values for side in pair]},
        "worst": [[index, *values] for index, values in list(largest.items())[:_MOST_LARGEST]],
        "kinds": [],
    }  # fmt: skip


def table_pictures(table: pl.DataFrame, summary: Summary) -> dict[str, dict[str, Any]]:
    """Pictures for a report, by row: the first divergence, then what arose by itself, then the rest that differs."""
    suspect = table.with_row_index("row").filter(pl.col("Result") != "pass")
    first = summary.first.order if summary.first else -1
    suspect = suspect.sort(pl.col("row") != first, pl.col("Origin") != "injected", "row")
    dumps = [Path(side.path) for side in (summary.target, summary.golden)]
    found = {}
    if "Data_name" in table.columns:
        kept = suspect.filter(pl.col("Data_name").str.contains("', '")).head(4 * _MOST_ROWS)
        columns = kept.select(pl.col("row").cast(pl.String), "Data_name", "Bench Tensor Shape").iter_rows()
        files = ((row, _FILES.fullmatch(names), shape) for row, names, shape in columns)
        named = ((row, *match.group("target", "golden"), shape) for row, match, shape in files if match)
        found = pictures([dump.parent / TENSOR_FOLDER for dump in dumps], named, views=_MOST_VIEWS)
    if not found:
        rows = suspect.select(pl.col("row").cast(pl.String), "NPU Name", "Bench Name").head(4 * _MOST_ROWS).rows()
        found = summary_pictures(dumps, rows)
    if found:
        axes = AxisNames(table.select("NPU Name", "NPU Tensor Shape").iter_rows())
        for row, drawn in found.items():
            drawn["names"] = axes(table["NPU Name"][int(row)], drawn["shape"])
    return found


# What the axes of a tensor are, where the call that it belongs to, or the sizes of the model, leave no doubt.

_ATTENTION = re.compile(r"scaled_dot_product_attention\.\d+\.forward\.(?:input\.[012]|output\.0)$")
_TOKENS = re.compile(r"\.(?:embed_tokens|wte|word_embeddings?|tok_embeddings)\.\w+\.forward\.\d+\.input\.0$")
_WEIGHT = re.compile(r"\.parameters\.|\.parameters_grad\.|\.linear\.\d+\.forward\.input\.[12]$")
_IMAGES = re.compile(
    r"(?:conv2d|batch_norm|max_pool2d|avg_pool2d)\.\d+\.forward\.(?:input|output)\.0$"
    r"|\.(?:Conv2d|BatchNorm2d|MaxPool2d|AvgPool2d)\.forward\.\d+\.(?:input|output)\.0$"
)
_FEATURES = re.compile(
    r"(?:linear|layer_norm|rms_norm)\.\d+\.forward\.(?:input|output)\.0$"
    r"|\.(?:Linear|\w*LayerNorm|\w*RMSNorm)\.forward\.\d+\.(?:input|output)\.0$"
    r"|\.Embedding\.forward\.\d+\.output\.0$"
)
_ROUTER = re.compile(r"^(.*\.)(?:gate|router)\.(?:Linear|\w*Router|\w*Gate)\.forward\.\d+\.output\.0$")
_EXPERTS = re.compile(r"\.experts\.\w+\.parameters\.\w+$")


class AxisNames:
    """Batch, tokens, heads and so on for the values of one run, learned from the names and shapes of all of them."""

    def __init__(self, values: Iterable[tuple[str, str]]) -> None:
        self._batch: set[int] = set()
        self._tokens: set[int] = set()
        self._heads: set[tuple[int, int]] = set()  # with their sizes
        self._features: set[int] = set()
        self._mixtures: set[str] = set()  # modules that have experts
        for name, text in values:
            front, experts, _ = name.partition("experts.")
            if experts:
                self._mixtures.add(front)
            attention, words = _ATTENTION.search(name), _TOKENS.search(name)
            if not (attention or words or _WEIGHT.search(name)):
                continue
            shape = [int(size) for size in re.findall(r"\d+", text)]
            if attention and len(shape) == 4:
                self._batch.add(shape[0])
                self._heads.add((shape[1], shape[3]))
                self._tokens.add(shape[2])
            elif words and len(shape) == 2:
                self._batch.add(shape[0])
                self._tokens.add(shape[1])
            elif not attention and not words:
                self._features.update(shape)

    def __call__(self, name: str, shape: Sequence[int]) -> list[str]:
        """A word for each axis, empty where it is not known for sure."""
        axes = len(shape)
        if _ATTENTION.search(name) and axes == 4:
            return ["batch", "heads", "tokens", "head_size"]
        if _IMAGES.search(name) and axes == 4:
            return ["batch", "channels", "height", "width"]
        words = [""] * axes
        if _EXPERTS.search(name) and axes == 3:
            words[0] = "experts"
        router = _ROUTER.match(name)
        if router and router[1] in self._mixtures and axes > 1:
            words[-1] = "experts"
        elif _FEATURES.search(name) and axes > 1:
            words[-1] = "features"
        if not _WEIGHT.search(name):
            self._by_size(shape, words)
        return words

    def _by_size(self, shape: Sequence[int], words: list[str]) -> None:
        """Activations: a size that the model has for one purpose only, on one axis only, tells what the axis is."""
        sizes = {
            "tokens": self._tokens | {batch * tokens for batch in self._batch for tokens in self._tokens},
            "heads": {heads for heads, _ in self._heads},
            "batch": self._batch,
        }
        if len(shape) != 4:
            del sizes["heads"]
        inner = self._features | {size for _, size in self._heads}
        for word, known in sizes.items():
            others = inner.union(*(more for other, more in sizes.items() if other != word))
            axes = [axis for axis, size in enumerate(shape) if size in known]
            if len(axes) == 1 and shape[axes[0]] > 1 and shape[axes[0]] not in others and not words[axes[0]]:
                words[axes[0]] = word
