"""How result files are called."""

from __future__ import annotations

import re
import time

_TIMESTAMP = re.compile(r"\d{14}")


def timestamp_now() -> str:
    """The local time as it stands in result names."""
    return time.strftime("%Y%m%d%H%M%S")


def result_stem(timestamp: str, rank_folder: str = "", *, debug: bool = False) -> str:
    """The name of a result without its ending, e.g. ``compare_result_rank0_20260102030405``."""
    if not _TIMESTAMP.fullmatch(timestamp):
        raise ValueError(f"a result's timestamp has 14 digits (YYYYmmddHHMMSS), not {timestamp!r}")
    if "/" in rank_folder or "\\" in rank_folder:
        raise ValueError(f"a rank folder is one name, not a path: {rank_folder!r}")
    prefix = "debug_compare_result" if debug else "compare_result"
    return "_".join(part for part in (prefix, rank_folder, timestamp) if part)


def result_name(timestamp: str, rank_folder: str = "", debug: bool = False, suffix: str = "xlsx") -> str:
    """The file name of a result, e.g. ``debug_compare_result_20260102030405.csv``."""
    return f"{result_stem(timestamp, rank_folder, debug=debug)}.{suffix.removeprefix('.')}"


def part_name(name: str, part: int) -> str:
    """The name of one part (counted from 1) of a result that is too long for one file."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}_part_{part}{dot}{suffix}" if dot else f"{name}_part_{part}"
