"""The engine of compiled loops: one fused pass without the interpreter lock, elements read in their own dtype."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from ctypes import CFUNCTYPE, addressof, c_double, c_int64, c_ubyte, c_void_p, string_at
from functools import cache, partial
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from platform import machine
from threading import Lock
from typing import Any

import llvmlite  # type: ignore[import-untyped]
import numpy as np
from llvmlite import binding
from numpy.typing import NDArray

from twinprobe import __version__
from twinprobe._measure.elements import address_of, block_count
from twinprobe._measure.loops.inference_sums import STATE, WIDTH
from twinprobe._measure.loops.sums import (
    BLOCK,
    BLOCKS,
    FLOATS,
    PAIR_COLUMNS,
    SKETCH_COLUMNS,
    STATE_AT,
    STATISTICS_AT,
    STRETCH_AT,
    TENSOR_COLUMNS,
    WORKSPACE,
)
from twinprobe._runs.dtypes import WIDTHS
from twinprobe._runs.sketches import ROW
from twinprobe._runs.whole_files import private_folder, write_whole

# Compiled loops, kept as machine code between runs and called without loading the compiler that made them.

# What loops may call of the C library. Code that needs anything else is not kept: loading it would end the process.
LIBRARY = ("exp", "expm1", "memcpy", "memset", "sqrt")


def host_machine() -> Any:
    """The processor that code is made for and runs on."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features(), opt=3, reloc="static", codemodel="jitdefault", jit=True
    )


@cache
def features() -> str:
    """What it can do beyond its kind."""
    try:
        features: str = binding.get_host_cpu_features().flatten()
    except RuntimeError:  # llvmlite cannot tell on some processors
        return ""
    return features


Loop = Callable[..., None]

_DIGEST = 16  # bytes, before the code

_loops: dict[str, Loop] = {}
_engines: list[Any] = []  # these hold the memory of the code
_loading = Lock()
_UNUSED = c_int64()


def ensure_usable() -> None:
    """Raise where loops can neither be loaded nor compiled."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise RuntimeError("NUMBA_DISABLE_JIT is set")
    _empty_engine()  # from now on the symbols of this process are known
    missing = [name for name in LIBRARY if binding.address_of_symbol(name) is None]
    if missing:
        raise RuntimeError(f"the C library has no {missing[0]}")
    folder = cache_folder()
    if folder is None or not any(folder.glob(f"*-{_key()}.o")):
        import twinprobe._measure.loops.compile  # noqa: F401 - to see whether numba fits the installed numpy


def load(name: str, arguments: int) -> Loop:
    """A compiled loop of so many arguments, addresses and whole numbers all; from the cache, or compiled for it."""
    return _loops.get(name) or _load(name, arguments)


def _load(name: str, arguments: int) -> Loop:
    with _loading:
        if name not in _loops:
            code = _kept(name)
            if code is None:
                from twinprobe._measure.loops.compile import machine_code_of

                code = machine_code_of(name, host_machine(), LIBRARY)
                _keep(name, code)
            _loops[name] = _callable(name, code, arguments)
    return _loops[name]


@cache
def cache_folder() -> Path | None:
    """The first of these that can be written: NUMBA_CACHE_DIR, the user's cache folder, a private temporary one."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    # Code of another user's would run here with our rights.
    return Path(chosen) if chosen else private_folder(f"kernels-{__version__}")


@cache
def _key() -> str:
    """Tells apart what must not be mixed up: our sources, the compiler, the processor."""
    numba = find_spec("numba")
    if numba is None or numba.origin is None:
        raise RuntimeError("numba is not installed")
    here = Path(__file__)
    sources = [here, *sorted((here.parent / "loops").glob("*.py"))]
    parts = (
        __version__, zlib.crc32(b"".join(path.read_bytes() for path in sources)), llvmlite.__version__,
        numba.origin, Path(numba.origin).stat().st_mtime_ns, binding.get_host_cpu_name(), features(),
    )  # fmt: skip
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _kept(name: str) -> bytes | None:
    folder = cache_folder()
    if folder is None:
        return None
    try:
        found = (folder / f"{name}-{_key()}.o").read_bytes()
    except OSError:
        return None
    code = found[_DIGEST:]
    return code if found[:_DIGEST] == _digest(code) else None


def _keep(name: str, code: bytes) -> None:
    folder = cache_folder()
    if folder is None:
        return
    with suppress(OSError):  # a full disk must not stop the measuring
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{name}-{_key()}.o", lambda place: place.write_bytes(_digest(code) + code))


def _digest(code: bytes) -> bytes:
    return blake2b(code, digest_size=_DIGEST).digest()


def _empty_engine() -> Any:
    return binding.create_mcjit_compiler(binding.parse_assembly(""), host_machine())


def _callable(name: str, code: bytes, arguments: int) -> Loop:
    engine = _empty_engine()  # of its own: names of different loops may be the same
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    # Numba's own convention: where to put a result and an exception, then the arguments. There is neither.
    prototype = CFUNCTYPE(None, c_void_p, c_void_p, *(c_int64,) * arguments)
    native = prototype(engine.get_function_address(name))
    return partial(native, addressof(_UNUSED), addressof(_UNUSED))


# The engine: blocks of elements in, rows of sums out.

_ROW = c_double * TENSOR_COLUMNS


class KernelEngine:
    """Rows of sums by compiled loops; each is compiled, or fetched from the cache, when it is first asked for."""

    def __init__(self) -> None:
        ensure_usable()

    def reads(self, dtype: str) -> bool:
        return dtype in FLOATS

    def pair_rows(self, dtype: str, target: NDArray[Any], golden: NDArray[Any]) -> NDArray[np.float64]:
        size = _elements(dtype, target)
        if size != _elements(dtype, golden):
            raise ValueError("the sizes of a pair differ")
        rows = np.empty((block_count(size), PAIR_COLUMNS))
        load(f"pair_{dtype}", 4)(address_of(target), address_of(golden), size, address_of(rows))
        return rows

    def tensor_rows(self, dtype: str, data: NDArray[Any]) -> NDArray[np.float64]:
        size = _elements(dtype, data)
        rows = np.empty((block_count(size), TENSOR_COLUMNS))
        load(f"tensor_{dtype}", 3)(address_of(data), size, address_of(rows))
        return rows

    def row_at(self, dtype: str, address: int, size: int) -> list[float]:
        """The row of at most one block of memory. The caller keeps it alive and knows that it is as large as this."""
        if size > BLOCK:
            raise ValueError("more than a block")
        row = _ROW()
        load(f"tensor_{dtype}", 3)(address, size, addressof(row))
        return row[:]

    def tensor_loop(self, dtype: str) -> Any:
        """A function of the address and the number of elements and of the address of rows, one for each block."""
        return load(f"tensor_{dtype}", 3)

    def crc32_at(self, address: int, size: int) -> int:
        if size < _LARGE or not _multiplies_polynomials():
            return zlib.crc32((c_ubyte * size).from_address(address))
        whole = size & ~63
        load("folded_bytes", 3)(address, whole, _work.address)
        # These 16 bytes have the checksum of all of it, if that starts from zero.
        found = zlib.crc32(string_at(_work.address, 16), 0xFFFFFFFF)
        return zlib.crc32((c_ubyte * (size - whole)).from_address(address + whole), found)

    def sketcher(self, dtype: str) -> KernelEngine | None:
        return self if dtype in _SKETCHED else None

    def sketch_state(
        self, dtype: str, data: NDArray[Any], runs: tuple[int, int, int, int], length: int
    ) -> NDArray[np.float64]:
        count, size, first, stride = runs
        if data.itemsize != WIDTHS[dtype] or data.size != count * size:
            raise ValueError(f"not {count * size} elements of {dtype}")
        data = np.require(data, requirements=["A", "C"])
        memory, address = _work.memory, _work.address
        load(f"sketch_{dtype}", 10)(
            address_of(data), count, size, first, stride, length, sign_table(dtype), address, 0, 0
        )
        return np.array(memory[STATE_AT:STRETCH_AT]).reshape(BLOCKS, SKETCH_COLUMNS)

    def sketch_at(self, dtype: str, address: int, size: int, length: int, flags: int) -> tuple[bytes, list[float]]:
        """The finished row of a whole tensor in memory, and its max, min, sum and sum of squares.

        The flags of the row are 0 where numpy has to do it; the last number is NaN where elements were left out. The
        caller keeps the memory alive and knows that it is as large as this.
        """
        memory, place = _work.memory, _work.address
        load(f"sketch_{dtype}", 10)(address, 1, size, 0, 0, length, sign_table(dtype), place, size, flags)
        return string_at(place, ROW.itemsize), memory[STATISTICS_AT:STATE_AT]


_LARGE = 8192  # bytes from which on folding them is quicker than zlib


@cache
def _multiplies_polynomials() -> bool:
    """Whether this processor can fold checksums."""
    try:
        return machine() in ("x86_64", "AMD64") and bool(binding.get_host_cpu_features().get("pclmul", False))
    except RuntimeError:  # llvmlite cannot tell on some processors
        return False


_SKETCHED = frozenset({*FLOATS, "bool", "uint8", "int8", "int16", "int32", "int64"})


class _Work(threading.local):
    """Memory that a loop of sketches works in, of each thread its own."""

    def __init__(self) -> None:
        self.memory = (c_double * WORKSPACE)()
        self.address = addressof(self.memory)


_work = _Work()


@cache
def sign_table(dtype: str) -> int:
    """The address of 256 vectors of eight signs, one for each byte: bit k set means that sign k is -1."""
    real = np.float64 if dtype == "float64" else np.float32
    signs = 1 - 2 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(real)
    room = np.empty(signs.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + signs.nbytes] = signs.reshape(-1).view(np.uint8)
    _tables.append(room)
    return int(room.ctypes.data) + start


_tables: list[NDArray[np.uint8]] = []  # what the addresses lead to


def _elements(dtype: str, data: NDArray[Any]) -> int:
    if data.itemsize != FLOATS[dtype] or not data.flags.aligned:
        raise ValueError(f"not elements of {dtype}")
    return data.size


# The rows of inference pairs by compiled loops.

_DTYPES = ("float32", "float16", "bfloat16")


def reads(dtype: str) -> bool:
    """Whether stored elements of this dtype are taken as they are."""
    return dtype in _DTYPES


def kernel_row(dtype: str, my: NDArray[Any], golden: NDArray[Any]) -> NDArray[np.float64]:
    """The row of a pair of stored elements: the columns of every comparison, then those of this one."""
    row: NDArray[np.float64] = kernel_rows(dtype, my, golden, np.array([(0, 0, my.size)], np.int64))[0, :WIDTH]
    return row


def kernel_rows(
    dtype: str,
    my: NDArray[Any],
    golden: NDArray[Any],
    places: NDArray[np.int64],
    before: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """One row for each pair of tensors that lie in two pieces of memory: where both begin, and their size.

    Where these are the next elements of the same pairs, ``before`` are their rows so far, which are then added to.
    Nothing changes in the numbers as long as all but the last elements come in whole pieces.
    """
    rows = np.empty((len(places), WIDTH + STATE)) if before is None else before
    assert rows.shape == (len(places), WIDTH + STATE)
    assert places.shape == (len(places), 3)
    assert places.dtype == np.int64
    most = (places[:, :2] + places[:, 2:]).max(axis=0) * FLOATS[dtype]
    assert places.min() >= 0
    assert most[0] <= my.nbytes
    assert most[1] <= golden.nbytes
    sides = address_of(my), address_of(golden)
    assert not (sides[0] | sides[1]) % FLOATS[dtype]
    room = np.empty(WIDTH)
    loop = load(f"inference_{dtype}", 7)
    loop(*sides, address_of(places), len(places), address_of(rows), address_of(room), before is None)
    return rows
