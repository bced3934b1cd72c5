"""Exponentials for compiled loops: arithmetic only, so that several are done at a time.

The ones in float32 are right to about two units in the last place, the one in float64 to about 1e-10.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from twinprobe.measure.loops.elements import exact, fused

_single = np.float32
_LOG2_E, _LN2 = _single(1.4426950408889634), _single(0.6931471805599453)
_LN2_HIGH, _LN2_LOW = _single(0.693359375), _single(-2.12194440e-4)
_MAGIC = _single(1.5 * 2**23)  # adding it and taking it away rounds to a whole number
_LEAST_POWER, _LEAST = _single(-126), _single(-10000)
_ONE = _single(1)
_C7, _C6, _C5, _C4, _C3, _C2 = (_single(1 / n) for n in (5040, 720, 120, 24, 6, 2))
_BIAS, _MANTISSA = np.int32(127), np.int32(23)

# e^r and (e^r - 1 - r) / r^2, fitted over |r| up to 0.347 (Chebyshev's points) to about 1e-7.
_E5, _E4, _E3, _E2, _E1, _E0 = (
    _single(value) for value in (0.00837528, 0.04191844, 0.16666414, 0.49998861, 1.00000004, 1.00000008)
)
_Q4, _Q3, _Q2, _Q1, _Q0 = (_single(value) for value in (0.00139332, 0.0083629, 0.04166647, 0.16666579, 0.5))
NEAR = 0.345

_WIDE_LOG2_E = 1.4426950408889634
_WIDE_LN2_HIGH, _WIDE_LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6
_WIDE_MAGIC = 1.5 * 2.0**52  # the whole number is found in the low bits, too


@fused
def powers_in(x: Any) -> Any:
    """How often 2 goes into e^x, a whole number."""
    return (x * _LOG2_E + _MAGIC) - _MAGIC


@fused
def rest_of(x: Any, powers: Any) -> Any:
    return (x - powers * _LN2_HIGH) - powers * _LN2_LOW


@exact
def power_of_two(whole: Any) -> Any:
    return np.int32((np.int32(whole) + _BIAS) << _MANTISSA).view(np.float32)


@fused
def curvature(r: Any) -> Any:
    """e^r - 1 - r for |r| up to 0.35."""
    p = _C7 * r + _C6
    p = p * r + _C5
    p = p * r + _C4
    p = p * r + _C3
    p = p * r + _C2
    return p * r * r


@fused
def weight_of(x: Any, top: Any) -> Any:
    """e^x as a share of 2^top, which is at least about as large; for numbers up to 10000."""
    x = max(x, _LEAST)
    powers = powers_in(x)
    r = rest_of(x, powers)
    return (_ONE + (r + curvature(r))) * power_of_two(max(powers - top, _LEAST_POWER))


@fused
def growth_and_excess(d: Any) -> Any:
    """e^d, and e^d - 1 - d without losing digits at small ones, for |d| up to 64."""
    powers = powers_in(d)
    r = rest_of(d, powers)
    scale, curve = power_of_two(powers), curvature(r)
    return scale * (_ONE + (r + curve)), scale * curve + ((scale - _ONE) * (_ONE + r) - powers * _LN2)


@fused
def near_weight(x: Any, top: Any) -> Any:
    """As weight_of where nothing is as small as 2^-120 of the largest: the power is put in its place by hand."""
    shifted = x * _LOG2_E + _MAGIC
    r = rest_of(x, shifted - _MAGIC)
    p = _E5 * r + _E4
    p = p * r + _E3
    p = p * r + _E2
    p = p * r + _E1
    p = p * r + _E0
    # The whole number stands in the low bits of what the magic one was added to.
    power = np.int32(np.int32(np.float32(shifted).view(np.int32) - np.int32(top)) << _MANTISSA)
    return np.int32(np.float32(p).view(np.int32) + power).view(np.float32)


@fused
def near_excess(d: Any) -> Any:
    """e^d - 1 - d for |d| up to NEAR."""
    q = _Q4 * d + _Q3
    q = q * d + _Q2
    q = q * d + _Q1
    q = q * d + _Q0
    return q * d * d


@exact
def exponential(x: Any) -> Any:
    """e^x in float64 for x <= 0."""
    x = x if x > -708.0 else -708.0
    shifted = x * _WIDE_LOG2_E + _WIDE_MAGIC
    whole = shifted - _WIDE_MAGIC
    r = (x - whole * _WIDE_LN2_HIGH) - whole * _WIDE_LN2_LOW
    p = 2.755731922398589e-06 * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    power = np.int64((np.float64(shifted).view(np.int64) + np.int64(1023)) << np.int64(52))
    return p * power.view(np.float64)
