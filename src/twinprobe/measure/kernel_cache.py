"""Where compiled kernels are kept between runs, and what the processor they are compiled for can do."""

from __future__ import annotations

import platform
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding  # type: ignore[import-untyped]

from twinprobe import __version__
from twinprobe.runs.private_folder import private_folder

_SOURCES = ("blocks.py", "gap_kernel.py", "kernels.py", "llm_exponential.py", "llm_kernel.py", "llm_passes.py")


def compile_cached(function: Callable[..., None], signature: Any) -> Callable[..., None]:
    """Compile for one signature; taken from the cache or put there if some cache folder can be used."""
    folder = cache_folder()
    if folder is not None:
        try:
            with _numba_caches_in(folder):
                return _compile(function, signature, cache=True)
        except Exception:  # a damaged cache or a full disk must not stop the measuring
            pass
    return _compile(function, signature, cache=False)


def _compile(function: Callable[..., None], signature: Any, *, cache: bool) -> Callable[..., None]:
    kernel: Callable[..., None] = numba.njit(signature, nogil=True, error_model="numpy", cache=cache)(function)
    return kernel


def cache_folder() -> Path | None:
    """The first of these that can be written: NUMBA_CACHE_DIR, the user's cache folder, a private temporary one."""
    if numba.config.CACHE_DIR:
        return Path(numba.config.CACHE_DIR)
    name = f"kernels-{__version__}-{_sources_digest():08x}"
    return private_folder(name)  # cached kernels are unpickled: another user's would run that user's code here


def _sources_digest() -> int:
    """Kernels call functions and take constants of each other's files, but numba watches only the file of each."""
    digest = 0
    for name in _SOURCES:
        digest = zlib.crc32((Path(__file__).parent / name).read_bytes(), digest)
    return digest


@contextmanager
def _numba_caches_in(folder: Path) -> Iterator[None]:
    # Set for these kernels only: the user's own numba functions keep the cache they had.
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def converts_half_in_hardware() -> bool:
    """Whether compiled code can turn float16 into float32 without a library call that numba does not have."""
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES:
        return False
    if platform.machine().lower() in ("aarch64", "arm64"):
        return True
    return bool(binding.get_host_cpu_features().get("f16c", False))
