"""Opening one tensor file of an inference dump, whatever wrote it: torch, numpy or ATB."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

import numpy as np

from twinprobe._runs.dtypes import WIDTHS
from twinprobe._runs.llm.atb_file import PLAIN, AtbHeader, read_header, tensor_of
from twinprobe._runs.tensors.elements import HostTensor, contents, damage_of
from twinprobe._runs.tensors.pt_file import read_pt, zip_members
from twinprobe._runs.tensors.tensor_files import open_tensor
from twinprobe._runs.whole_files import inside, remote, scan
from twinprobe.errors import DamagedTensor

_MOST_ALIASES, _LONGEST_ALIAS = 8, 255
_ALIAS = re.compile(r"(?P<op>\d+(?:_\d+)*)_(?P<file>(?:in|out)tensor\d+\w*\.bin)")


def open_llm_tensor(root: Path, name: str, *, linked: bool = True, enough: int | None = None) -> HostTensor:
    """Open ``name`` under ``root``. Links must stay under the root; ATB aliases are followed there too.

    ``linked=False`` says that the name comes from a listing of the folder and is no link, which saves the check.
    ``enough`` says how many bytes of the elements will be looked at, if not all: no more of a remote file is fetched.
    """
    if not name.endswith(".bin"):
        return open_tensor(inside(root, name) if linked else root / name, enough=enough)
    path = _path(root, name, linked=linked)
    seen: list[str] = []
    while True:
        try:
            data = contents(path, enough=enough)
            header = read_header(data)
            if header.alias is None:
                return tensor_of(data, header)
        except (DamagedTensor, OSError, MemoryError) as error:
            raise damage_of(path, error) from None
        seen.append(name)
        name = alias_target(root, name, header.alias)
        if name in seen or len(seen) > _MOST_ALIASES:
            raise DamagedTensor(f"names another file for its elements, which leads back to {name}", where=path)
        path = inside(root, name)


def open_llm_header(root: Path, name: str, *, linked: bool = True) -> AtbHeader:
    """The header of an ATB file, for statistics and descriptions."""
    path = _path(root, name, linked=linked)
    try:
        return read_header(contents(path, enough=0))
    except (DamagedTensor, OSError) as error:
        raise damage_of(path, error) from None


def _path(root: Path, name: str, *, linked: bool) -> Path | str:
    """Where a file is; a text on this machine, since there are very many of them."""
    if linked:
        return inside(root, name)
    return f"{root}/{name}" if remote(root) is None else root / name


def alias_target(root: Path, name: str, alias: str) -> str:
    """The file that an alias means: a path beside the file, or ``{op}_{child}_outtensor{i}.bin`` of the same round."""
    beside = f"{name.rpartition('/')[0]}/{alias}" if "/" in name else alias
    found = _ALIAS.fullmatch(alias) if len(alias) <= _LONGEST_ALIAS else None
    if found is None:
        return beside
    path = root / _round_folder(name)
    for number in found["op"].split("_"):
        nested = [entry for entry in _folders(path) if entry.partition("_")[0] == number]
        if not nested:
            raise DamagedTensor(f"names {alias} for its elements, but there is no operation {found['op']}", where=name)
        path = path / nested[0]
    places = ("before", "after") if found["file"].startswith("intensor") else ("after", "before")
    files = [path / place / found["file"] for place in places]
    return str(next((file for file in files if file.exists()), files[0]).relative_to(root))


def _round_folder(name: str) -> str:
    """The path up to the first operation folder: ``tensors/0_123/0`` of ``tensors/0_123/0/1_Op/after/x.bin``."""
    kept: list[str] = []
    for part in name.split("/")[:-1]:
        if re.match(r"\d+_\D", part) and (not kept or kept[-1].isdecimal()):
            break
        kept.append(part)
    else:
        return "."
    return "/".join(kept)


def _folders(path: Path) -> list[str]:
    try:
        with scan(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


# What the bytes before the elements say, remembered: tensors of one place say the same at every token.
#
# Only files whose elements lie in them as kernels take them are described here; all others are None, and whoever
# asked opens them with ``open_llm_tensor``, which also says what is wrong with them.

DTYPES = {name: WIDTHS[name] for name in ("float16", "bfloat16", "float32")}

# A longer header is not one of a usual tensor.
HEAD = 512
_END = b"\n$End=1\n"
_MOST_LENGTHS, _MOST_FRAMES, _LONGEST_FRAME = 256, 16, 1 << 13
_LAST_RECORD = Struct("<4s4H2IH")
_ENTRY_LENGTHS, _ENTRY_HEADER = Struct("<3H"), Struct("<I")


class Described(NamedTuple):
    """Elements of a file: their dtype, how many there are, at which byte they start, and how reports show them."""

    dtype: str
    elements: int
    start: int
    end: int
    shown_dtype: str
    shown_shape: str


@lru_cache(maxsize=1 << 12)
def _atb(head: bytes) -> Described | None:
    try:
        header = read_header(head)
    except DamagedTensor:
        return None
    if header.dtype is None or header.alias is not None:
        return None
    return _usable(PLAIN.get(header.dtype, ""), header.shape, header.start)


def _usable(dtype: str, shape: tuple[int, ...], start: int) -> Described | None:
    if dtype not in DTYPES or not prod(shape):
        return None
    end = start + prod(shape) * DTYPES[dtype]
    return Described(dtype, prod(shape), start, end, f"torch.{dtype}", str(list(shape)))


class _Frame(NamedTuple):
    """All of a torch file that its reader looks at, as pieces of its bytes; files of equal frames are read alike.

    The pieces stand before the elements or behind them; those behind count from the end of the elements on.
    """

    length: int
    head: tuple[Piece, ...]
    tail: tuple[Piece, ...]
    found: Described

    @property
    def is_short(self) -> bool:
        """Whether it is worth its memory: a view of a large storage has that storage for a frame."""
        return self.length - (self.found.end - self.found.start) <= _LONGEST_FRAME


Piece = tuple[int, int, bytes]


class Known:
    """Files by their names: one that says of itself what the last one of its name said is not looked at again."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[bytes, Described]] = {}
        self._frames: dict[str, _Frame] = {}

    def described(self, name: str, view: memoryview, offset: int, length: int) -> Described | None:
        """What the bytes at a place of the memory are, which were read from a file of this name.

        Of an ATB file only the first bytes have to be there; ``length`` is that of the file.
        """
        known = self._heads.get(name)
        if known is not None and known[1].end <= length and view[offset : offset + len(known[0])].tobytes() == known[0]:
            return known[1]
        frame = self._frames.get(name)
        if frame is not None and _fits(frame, view, offset, length):
            return frame.found
        if name.endswith(".bin"):
            return self._atb(name, view[offset : offset + min(length, HEAD)].tobytes(), length)
        if name.endswith((".pth", ".pt")):
            return self._torch(name, view[offset : offset + length].tobytes())
        return None

    def _atb(self, name: str, head: bytes, length: int) -> Described | None:
        end = head.find(_END)
        found = _atb(head[: end + len(_END)]) if end > 0 else None
        if found is None or found.end > length:
            return None
        self._heads[name] = head[: end + len(_END)], found
        return found

    def _torch(self, name: str, data: bytes) -> Described | None:
        frame = _frame_of(data)
        if frame is not None and frame.is_short:
            self._frames[name] = frame
        return None if frame is None else frame.found


def _fits(frame: _Frame, view: memoryview, offset: int, length: int) -> bool:
    if frame.length != length:
        return False
    found = frame.found
    head = view[offset : offset + found.start].tobytes()
    for start, stop, piece in frame.head:
        if head[start:stop] != piece:
            return False
    tail = view[offset + found.end : offset + length].tobytes()
    for start, stop, piece in frame.tail:  # noqa: SIM110  by the million: a generator costs as much as the work
        if tail[start:stop] != piece:
            return False
    return True


_frames: dict[int, list[_Frame]] = {}


def _frame_of(data: bytes) -> _Frame | None:
    view, known = memoryview(data), _frames.get(len(data), [])
    for frame in known:
        if _fits(frame, view, 0, len(data)):
            return frame
    try:
        made = _frame(data)
    except (DamagedTensor, StructError):
        return None
    if made is None:
        return None
    if made.is_short:
        if len(_frames) >= _MOST_LENGTHS:
            _frames.clear()
        _frames[len(data)] = [made, *known][:_MOST_FRAMES]
    return made


def _frame(data: bytes) -> _Frame | None:
    tensor = read_pt(data)
    address = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    start = tensor.data.__array_interface__["data"][0] - address
    in_place = tensor.data.size > 0 and 0 <= start <= len(data) - tensor.data.nbytes
    found = _usable(tensor.dtype, tensor.shape, start) if in_place else None
    if found is None:
        return None
    holes = _unread(data, found)
    head, tail = _pieces(data, holes, 0, found.start), _pieces(data, holes, found.end, len(data))
    return _Frame(len(data), head, tail, found)


def _pieces(data: bytes, holes: list[tuple[int, int]], start: int, stop: int) -> tuple[Piece, ...]:
    """What lies between the holes from one place to another, counted from the first."""
    pieces, offset = [], start
    for first, last in [*sorted(hole for hole in holes if hole[0] < stop), (stop, stop)]:
        if first > offset:
            pieces.append((offset - start, first - start, data[offset:first]))
        offset = max(offset, last)
    return tuple(pieces)


def _unread(data: bytes, found: Described) -> list[tuple[int, int]]:
    """What may differ between files without their being read differently: checksums of elements, the id of the file."""
    holes = []
    headers = set()
    for name, member in zip_members(data).items():
        is_id = name.endswith("/.data/serialization_id") and not member.deflated
        if not is_id and not member.start <= found.start < member.end:
            continue  # the other members are the same in files of one frame, and so are their checksums
        headers.add(member.header)
        holes.append((member.header + 14, member.header + 18))
        if data[member.end : member.end + 4] == b"PK\7\10":
            holes.append((member.end + 4, member.end + 8))
        if is_id:
            holes.append((member.start, member.end))
    return holes + _directory_checksums(data, headers)


def _directory_checksums(data: bytes, headers: set[int]) -> list[tuple[int, int]]:
    """Where the directory has the checksums of the members with these headers."""
    signature, _, _, _, count, size, _, _ = _LAST_RECORD.unpack(data[-_LAST_RECORD.size :])
    offset, holes = len(data) - _LAST_RECORD.size - size, []
    if signature != b"PK\5\6" or offset < 0:
        return []
    for _ in range(count):
        if data[offset : offset + 4] != b"PK\1\2":
            return []  # a directory of another build: its checksums stay part of the frame
        if _ENTRY_HEADER.unpack(data[offset + 42 : offset + 46])[0] in headers:
            holes.append((offset + 16, offset + 20))
        offset += 46 + sum(_ENTRY_LENGTHS.unpack(data[offset + 28 : offset + 34]))
    return holes
