"""An iterator that works one item ahead, in a thread: for producers whose work leaves the interpreter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items in the same order; while one is used the next is made."""
    source = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="twinprobe-ahead") as pool:
        following: Future[object] = pool.submit(next, source, _END)
        while (item := following.result()) is not _END:
            following = pool.submit(next, source, _END)
            yield item  # type: ignore[misc]
