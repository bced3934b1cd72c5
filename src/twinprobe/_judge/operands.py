"""What every call reads and makes, and how an error of the one becomes an error of the other."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import all_dims
from twinprobe._judge.deviation import COARSE, WILD, Values
from twinprobe._judge.drift import updates_of
from twinprobe._judge.flow import NONE, Flow
from twinprobe._judge.operations import OTHER_MODULE, Family, is_inverse, is_kinked, is_over_batch, operation_of
from twinprobe._runs.names import FORWARD
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER

if TYPE_CHECKING:
    import polars as pl

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROUNDING = 0.21  # of an epsilon: one rounding of every element, in relative norm
RESOLVED = 0.7e-7  # sums of sketches resolve no finer errors
THROUGH_DERIVATIVES = 3.0  # gradients pass through derivatives that no dump holds
FLOAT32 = 2.0**-23
_STEEPEST = 1e3  # no further is a relative error carried from a mean element to the smallest
_ROW = 8.0  # numbers that every kernel adds up first
_MOST_ROUNDINGS = 64.0  # to 16 bits, in one call
_PATHS = "ctc_loss"


class Operands:
    """Every floating-point input of every call, with what its call is: one entry an input."""

    def __init__(self, pairs: pl.DataFrame, flow: Flow, values: Values, settings: dict[str, Any], noisy: Any) -> None:
        self.count = count = len(flow.ops)
        self.family: Ints = flow.each_call(lambda op: operation_of(op).family, np.int64)
        self.factor: Floats = flow.each_call(lambda op: operation_of(op).factor, np.float64)
        self.often: Floats = flow.each_call(lambda op: operation_of(op).roundings, np.float64)
        self.one: Bools = flow.each_call(lambda op: operation_of(op).one)
        for call, members in flow.grouped.items():
            # A linear map in place of a convolution adds up as many products, in another order.
            if len(members) > 1 or self.family[call] != Family.PRODUCT:
                self.family[call], self.factor[call] = OTHER_MODULE.family, OTHER_MODULE.factor
                self.often[call] = OTHER_MODULE.roundings
        self.backward = flow.each_call(lambda op: op.direction != FORWARD)
        takes = ((flow.role == INPUT) | (flow.role == PARAMETER)) & (values.elements > 0) & (values.epsilon > 0)
        self.rows = np.flatnonzero(takes & (flow.of_row >= 0))
        self.calls = flow.of_row[self.rows]
        self.first, self.second, self.third = self._by_place()
        self.gives = np.flatnonzero(((flow.role == OUTPUT) | (flow.role == GRADIENT)) & (flow.of_row >= 0))
        self.size, self.norm, self.fine = np.zeros(count), np.zeros(count), np.zeros(count)
        owners = flow.of_row[self.gives]
        for array, what in ((self.size, values.elements), (self.norm, values.norm), (self.fine, values.epsilon)):
            np.maximum.at(array, owners, what[self.gives])
        self.terms = self._contracted(pairs, flow)
        self.path = np.zeros(count)  # the logarithm of what CTC adds up: the probabilities of whole paths
        self.updates = updates_of(pairs, flow, self.first, noisy, settings)
        self.elements = np.maximum(values.elements[self.rows], 1)
        self.ratio = self.size[self.calls] / self.elements
        self.spread = np.sqrt(np.maximum(1.0, self.ratio))  # a broadcast repeats its errors
        self.first_rms, self.second_rms, self.third_rms = (
            np.where(place != NONE, values.rms[np.maximum(place, 0)], 1.0)
            for place in (self.first, self.second, self.third)
        )
        paths = flow.each_call(lambda op: _PATHS in op.body)
        if paths.any():
            self.path = np.where(paths & ~self.backward, self.terms * self.first_rms, 0.0)
            self.path = np.where(paths & (flow.twin != NONE), self.path[flow.twin], self.path)
        self.value_norm = self.third_rms * np.sqrt(self.size)  # of attention: what it averages
        # Normalising divides by what is left of the values without their mean.
        rms, mean = values.rms[self.rows], np.abs(values.mean[self.rows])
        with np.errstate(over="ignore", invalid="ignore"):
            left = np.sqrt(np.maximum(rms**2 - mean**2, (1e-3 * rms) ** 2))
        normed = (self.family[self.calls] == Family.NORM) & (self.rows == self.first[self.calls]) & (left > 0)
        self.steep = np.where(normed, rms / np.where(left > 0, left, 1), 1.0)
        # The smallest elements are the largest of the results.
        inverts = flow.each_call(is_inverse)[self.calls]
        least = pairs["g_min"].to_numpy().astype(np.float64)[self.rows]
        steepest = np.clip(np.divide(rms, least, out=np.ones_like(rms), where=inverts & (least > 0)), 1.0, _STEEPEST)
        self.steep = np.fmax(self.steep, steepest)

    def _by_place(self) -> tuple[Ints, Ints, Ints]:
        """The first three floating-point inputs of each call; the third is the second where there are two."""
        places: list[Ints] = []
        left = np.ones(len(self.rows), dtype=bool)
        for _ in range(3):
            place = places[-1].copy() if len(places) == 2 else np.full(self.count, NONE, dtype=np.int64)
            place[self.calls[left][::-1]] = self.rows[left][::-1]
            left &= self.rows != place[self.calls]
            places.append(place)
        return places[0], places[1], places[2]

    def _contracted(self, pairs: pl.DataFrame, flow: Flow) -> Floats:
        """How many numbers a call adds up: a product for each element, a norm over a batch for each channel."""
        terms = np.ones(self.count)
        shapes = pairs["g_shape"]
        known = {text: shape for text, shape in all_dims(shapes.unique().to_list()).items() if shape}
        norms = np.flatnonzero((self.family == Family.NORM) & (self.first != NONE))
        if len(norms):
            norms = norms[flow.each_call(is_over_batch)[norms]]
            counts = {text: prod(shape) / max(shape[1], 1) for text, shape in known.items() if len(shape) > 1}
            taken = shapes.gather(self.first[norms])
            terms[norms] = taken.replace_strict(counts, default=1.0).fill_null(1.0).to_numpy()
        for call in np.flatnonzero(flow.each_call(lambda op: _PATHS in op.body) & (self.first != NONE)).tolist():
            terms[call] = float(known.get(shapes[int(self.first[call])], (1,))[0])
        products = np.flatnonzero((self.family == Family.PRODUCT) & (self.second != NONE))
        if len(products):
            first = self.first[products]
            # Where what goes in has no partner (patches that are cut elsewhere), the weight comes first.
            ends = pairs["g_name"].gather(first).str.contains(r"\.(input\.1|weight)$").fill_null(value=False)
            by_weight = (flow.role[first] == PARAMETER) | ends.to_numpy()
            convolution = flow.each_call(lambda op: "conv" in (op.cls or op.body).lower())[products] & ~by_weight
            operand = shapes.gather(np.where(convolution, self.second[products], first))
            inner = {text: float(prod(shape[1:])) for text, shape in known.items()}
            last = {text: float(shape[-1]) for text, shape in known.items()}
            added = [operand.replace_strict(each, default=1.0).fill_null(1.0).to_numpy() for each in (inner, last)]
            terms[products] = np.where(convolution | by_weight, *added)
        return np.maximum(terms, 1.0)

    def explained(self, flow: Flow, values: Values, estimated: Bools, sketched: Bools, few: Floats) -> Floats:
        """Per call: how far off its outputs may be since its inputs are, as a distance.

        ``few``: see ``shown_by_means``.
        """
        rows, calls, kind, by = self.rows, self.calls, self.family[self.calls], self.factor[self.calls]
        distance = np.nan_to_num(values.distance[rows], nan=0.0)
        dirty = np.maximum.accumulate(np.nan_to_num(values.distance) > 0)[rows]
        # What a sketch does not resolve may be there, once anything differs at all.
        distance = np.where(dirty & sketched[rows], np.fmax(distance, RESOLVED * values.norm[rows]), distance)
        if estimated.any():
            # Four numbers see only a part of a difference; 16-bit ones hide half an epsilon.
            dirty = dirty & estimated[rows]
            epsilon = values.epsilon[rows]
            hidden = np.where(epsilon > COARSE, 0.5, ROUNDING) * epsilon * values.norm[rows]
            distance = np.where(dirty, np.fmax(np.fmax(2.0 * distance, hidden), few[rows]), distance)
        sizes = values.norm[rows]
        error = np.where(sizes > 0, distance / np.where(sizes > 0, sizes, 1), 0.0)
        norm, two = self.norm[calls], self.second[calls] != NONE
        other = np.where(rows == self.first[calls], self.second_rms[calls], self.first_rms[calls])
        logits = np.maximum(1.0, self.first_rms * self.second_rms)[calls]
        relative = by * error * norm
        single = distance / np.sqrt(self.elements)  # the error of one element
        gain = np.select(
            [
                self.backward[calls],
                (kind == Family.COPY) | (kind == Family.SUM),
                kind == Family.REDUCE,
                kind == Family.MEAN,
                kind == Family.SMOOTH,
                (kind == Family.PRODUCT) & two,
                (kind == Family.MULTIPLY) & two,
                kind == Family.EXPONENT,
                kind == Family.LOSS,
                kind == Family.ATTENTION,
            ],
            [
                np.fmax(THROUGH_DERIVATIVES * error * norm, distance),  # sums over a batch may cancel
                distance * self.spread,
                2 * distance,
                2 * distance * np.sqrt(np.minimum(1.0, self.ratio)),  # errors may be alike: those of a bias, say
                by * distance * self.spread,
                2 * distance * np.sqrt(self.ratio * self.terms[calls]) * other,
                np.fmax(by * distance * other * self.spread, relative),
                np.fmax(relative, by * single * norm),
                np.fmax(by * single, error * norm),
                by * error * np.fmax(self.value_norm, self.norm)[calls] * logits,
            ],
            relative * self.steep,
        )
        # Adaptive optimizers make whole steps of gradients that are noise.
        ratio = np.divide(self.second_rms, self.third_rms, out=np.ones(self.count), where=self.third_rms > 0)[calls]
        divided = self.updates.quotient(calls, ratio, self.size[calls])
        gain = np.where(self.updates.divides[calls] & (distance > 0), np.fmax(gain, divided), gain)
        flipped = self.updates.flipped(calls, error, self.first_rms[calls], self.size[calls])
        gain = np.where(rows == self.first[calls], np.fmax(gain, flipped), gain)
        squares = np.zeros(self.count)
        np.add.at(squares, calls, gain**2)
        # A backward call also reads what its forward call kept.
        kept, seen = np.zeros(self.count), flow.of_row >= 0
        np.maximum.at(kept, flow.of_row[seen], np.nan_to_num(values.error, nan=0.0, posinf=WILD)[seen])
        kept = np.where(flow.twin != NONE, kept[np.maximum(flow.twin, 0)], 0.0)
        squares += (THROUGH_DERIVATIVES * kept * self.norm) ** 2
        # The derivative of a kink jumps: as many elements flip as lie within the error around it.
        squares += np.where(flow.each_call(is_kinked), kept, 0.0) * self.norm**2
        return np.sqrt(squares)

    def added_up(self, values: Values) -> Floats:
        """Per call: the size of what it adds up on the way, which may be far larger than what is left of it."""
        count, calls, family = self.count, self.calls, self.family
        sizes = values.norm[self.rows]
        summed, reduced, steep = np.zeros(count), np.zeros(count), np.ones(count)
        np.add.at(summed, calls, (sizes * self.spread) ** 2)
        shrunk = np.where(family[calls] == Family.MEAN, np.minimum(1, self.ratio), 1.0)
        np.maximum.at(reduced, calls, sizes * shrunk)
        np.maximum.at(steep, calls, self.steep)
        products = np.sqrt(self.size * self.terms) * self.first_rms * self.second_rms
        scale = np.select(
            [
                self.backward,
                family == Family.SUM,
                (family == Family.REDUCE) | (family == Family.MEAN),
                (family == Family.PRODUCT) & (self.second != NONE),
                family == Family.ATTENTION,
                family == Family.LOSS,
            ],
            [self.norm, np.sqrt(summed), reduced, products, self.value_norm, self.first_rms],
            self.norm * steep,
        )
        ones = np.where(self.one & ~self.backward & (self.fine <= 2 * FLOAT32), np.sqrt(self.size), 0.0)
        largest: Floats = np.fmax(np.fmax(scale, self.norm), ones)
        return largest

    def roundings(self) -> Floats:
        """Per call: how often it rounds on the way."""
        # Products of 16 bits are summed in float32, and so are those of recurrent layers.
        coarse = self.fine > 2 * FLOAT32
        sums = np.where(coarse, 2.0, np.maximum(self.terms, 2.0))
        often = np.where(coarse, np.minimum(self.often, _MOST_ROUNDINGS), self.often)
        often = np.where(self.family == Family.PRODUCT, np.maximum(sums, often), often)
        # Some kernels sum a channel of an image in rows, others in one go: channels_last, say.
        often = np.where(self.family == Family.NORM, np.maximum(sums / _ROW, often), often)
        # The error of a logarithm is relative to what it is the logarithm of.
        often = np.maximum(often, self.path**2)
        rounded: Floats = np.where(self.backward, 2 * np.maximum(often, 4.0), often)
        return rounded
