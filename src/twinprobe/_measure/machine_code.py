"""Compiled loops, kept as machine code between runs and called without loading the compiler that made them.

Numba takes a quarter of a second to import and to find a function in a cache of its own; llvmlite alone takes a
fortieth to put code into memory.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from ctypes import CFUNCTYPE, addressof, c_int64, c_void_p
from functools import cache, partial
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import llvmlite  # type: ignore[import-untyped]
from llvmlite import binding

from twinprobe import __version__
from twinprobe._measure.loops.processor import LIBRARY, features, host_machine
from twinprobe._runs.whole_files import private_folder, write_whole

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

                code = machine_code_of(name)
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
    here = Path(__file__).parent
    sources = sorted((here / "loops").glob("*.py"))
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
