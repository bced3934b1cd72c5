"""Tensors saved by hand against the files of an engine's dump that the user named for them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path, PurePath

from twinprobe.compare.llm.job import LlmComparison, LlmRequest, joined
from twinprobe.compare.llm.load import Store
from twinprobe.compare.llm.plan import API, Call, Plan
from twinprobe.compare.llm.rows import Row, Rows
from twinprobe.compare.llm.token import TokenJob, TokenResult, Where, result_of
from twinprobe.errors import NothingToCompare
from twinprobe.judge.summary import Side
from twinprobe.runs.llm.files import OUTPUT, TensorFile
from twinprobe.runs.llm.layout import STORES, Layout, find_layout
from twinprobe.runs.llm.manual import METADATA, ManualPair, read_manual


def compare_manual(
    request: LlmRequest, metadata: Path, advance: Callable[[str, int, int], None] | None = None
) -> LlmComparison:
    """Compare every pair that the metadata names."""
    layout = find_layout(request.my)
    groups = [list(group) for _, group in groupby(read_manual(metadata), key=lambda pair: pair.token)]
    results = []
    for group in groups:
        results.append(_token(request, metadata.parent, layout, group))
        if advance is not None:
            advance("tokens", len(results), len(groups))
    if not any(result.counts.matched > result.counts.unread for result in results):
        reason = results[0].table["cmp_fail_reason"][0]
        raise NothingToCompare(f"none of the pairs can be read: {reason}", where=metadata)
    my = Side(str(request.my), layout.kind, "tensor", "", 0, 0)
    return joined(results, (my, Side(str(request.golden), METADATA, "tensor", "", 0, 0)), [])


def _token(request: LlmRequest, folder: Path, layout: Layout, pairs: list[ManualPair]) -> TokenResult:
    token = pairs[0].token
    job = TokenJob(
        token=token,
        device=layout.device.name if layout.device else "",
        my=Where(layout.kind, layout.root, ""),
        golden=Where(METADATA, folder, ""),
        plan=Plan([Call(pair.data_id, pair.data_id, "", API) for pair in pairs], {}, [], [], across=True),
        limits=request.thresholds,
        algorithms=request.algorithms,
        timeout=request.timeout,
    )
    rows = Rows(_row(at, pair, layout) for at, pair in enumerate(pairs))
    return result_of(job, rows, Store(layout.root, "", (), {}), Store(folder, "", (), {}))


def _row(at: int, pair: ManualPair, layout: Layout) -> Row:
    # Names that somebody wrote, not ones from a listing: they are checked before they are followed.
    my, golden = (TensorFile(OUTPUT, (0,), file, linked=True) for file in (_file(pair, layout), pair.golden))
    return Row((my,), (golden,), "", "", at, API, METADATA)


def _file(pair: ManualPair, layout: Layout) -> str:
    """My file under the dump's root: named from the root, the device or the token on, or where it once lay."""
    name = pair.my.replace("\\", "/").removeprefix("./")
    places = [_moved(name, layout.root)]
    for device in layout.chosen:
        places += [f"{device.folder}/{pair.token}/{name}", f"{device.folder}/{name}"]
        if layout.token is not None:
            places.append(f"{device.folder}/{layout.token}/{name}")
    sound = [place for place in places if not place.startswith("/") and ".." not in place.split("/")]
    return next((place for place in sound if (layout.root / place).exists()), places[0])


def _moved(name: str, root: Path) -> str:
    path = PurePath(name)
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    parts = name.split("/")
    at = next((at for at, part in enumerate(parts) if part in STORES), 0)
    return "/".join(parts[at:])
