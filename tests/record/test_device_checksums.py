"""The arithmetic that puts device checksums together gives zlib's numbers."""

from __future__ import annotations

import zlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._measure.crc32 import ORDER, combine_blocks, crc_of_zeros, power_of_x, times, times_constant


def register(data: bytes) -> int:
    """The checksum register started at zero."""
    return zlib.crc32(data) ^ crc_of_zeros(len(data))


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_two_pieces_combine_to_the_checksum_of_the_whole(first: bytes, second: bytes) -> None:
    joined = times(register(first), power_of_x(8 * len(second))) ^ register(second)
    assert joined ^ crc_of_zeros(len(first) + len(second)) == zlib.crc32(first + second)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_blocks_of_many_messages_combine_at_once(counts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    messages = [[rng.bytes(16) for _ in range(count)] for count in counts]
    blocks = np.array([register(block) for blocks in messages for block in reversed(blocks)], dtype=np.uint32)
    combined = combine_blocks(blocks, np.array(counts), 8 * 16)
    wholes = [b"".join(blocks) for blocks in messages]
    assert [int(one) ^ crc_of_zeros(len(data)) for one, data in zip(combined, wholes, strict=True)] == [
        zlib.crc32(data) for data in wholes
    ]


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-(2**40), 2**40))
def test_tables_multiply_like_the_field(value: int, exponent: int) -> None:
    factor = power_of_x(exponent)
    assert int(times_constant(np.array([value], dtype=np.uint32), factor)[0]) == times(value, factor)
    assert times(factor, power_of_x(-exponent)) == power_of_x(0) == power_of_x(ORDER)
