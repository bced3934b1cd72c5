"""Arithmetic of the CRC-32 field: polynomials over GF(2) modulo the checksum's polynomial.

A 32-bit number stands for a polynomial in the checksum's own (reflected) order: bit 31 is x^0, bit 0 is x^31. The
register after a message M, started at zero, is M(x) x^32. It is linear, so blocks are computed apart and combined
exactly; ``crc_of_zeros`` adds what the usual all-ones start contributes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0xEDB88320
ONE = 0x80000000
ORDER = (1 << 32) - 1

Words = NDArray[np.uint32]


def times(a: int, b: int) -> int:
    """The product of two field elements."""
    product = 0
    while b:
        if b & ONE:
            product ^= a
        a = (a >> 1) ^ (POLYNOMIAL if a & 1 else 0)
        b = (b << 1) & 0xFFFFFFFF
    return product


@lru_cache(maxsize=4096)
def power_of_x(exponent: int) -> int:
    """x to any power, negative ones included: the field's group has order 2^32 - 1."""
    exponent %= ORDER
    result, square = ONE, ONE >> 1
    while exponent:
        if exponent & 1:
            result = times(result, square)
        square = times(square, square)
        exponent >>= 1
    return result


@lru_cache(maxsize=128)
def table_of(factor: int) -> Words:
    """Four tables of 256: the product of a number with ``factor`` is the XOR of one look-up per byte."""
    table = np.zeros((4, 256), dtype=np.uint32)
    for byte in range(4):
        for bit in range(8):
            value = times(1 << (8 * byte + bit), factor)
            half = 1 << bit
            table[byte, half : 2 * half] = table[byte, :half] ^ np.uint32(value)
    return table


def times_constant(values: Words, factor: int) -> Words:
    """Every number of an array times the same field element."""
    table = table_of(factor)
    result: Words = table[0][values & 255]
    for byte in range(1, 4):
        result = result ^ table[byte][(values >> np.uint32(8 * byte)) & 255]
    return result


def crc_of_zeros(count: int) -> int:
    """zlib.crc32 of so many zero bytes, without the bytes."""
    return times(0xFFFFFFFF, power_of_x(8 * count)) ^ 0xFFFFFFFF


def combine_blocks(blocks: Words, counts: NDArray[Any], block_bits: int) -> Words:
    """Registers of equal blocks to one register per message.

    ``blocks`` holds the messages one after another, each one's last block first; ``counts`` says how many blocks each
    has. Neighbours are combined pairwise, so the work is a handful of array operations for any number of blocks.
    """
    lengths = np.asarray(counts, dtype=np.int64)
    values = blocks
    bits = block_bits
    while lengths.size and int(lengths.max()) > 1:
        starts = np.cumsum(lengths) - lengths
        halves = (lengths + 1) // 2
        offsets = np.arange(int(halves.sum())) - np.repeat(np.cumsum(halves) - halves, halves)
        low = np.repeat(starts, halves) + 2 * offsets
        has_high = 2 * offsets + 1 < np.repeat(lengths, halves)
        high = np.where(has_high, values[np.minimum(low + 1, values.size - 1)], np.uint32(0))
        values = values[low] ^ times_constant(high, power_of_x(bits))
        lengths = halves
        bits *= 2
    return values
