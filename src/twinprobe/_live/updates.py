"""The parameters of two live models after the steps of their optimizers, and the settings of these optimizers.

Adam and its kin divide by the size of a gradient: an element whose gradient is nothing but rounding (a bias before a
normalisation, that of the keys of an attention) moves by a whole step in any direction. No fixed tolerance fits that.
Where the user names none, an element may be off by as much of a step as its gradient is in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.turns import REORDERED
from twinprobe._judge.operations import differing_settings, other_formula
from twinprobe._live.findings import WEIGHT_PHASE, Finding
from twinprobe._live.live_run import LiveRun
from twinprobe._live.measuring import parameter_of, parameter_pairs, put_together
from twinprobe._live.pairing.matching import Matches
from twinprobe._live.running import Model, Options
from twinprobe._measure.elements import ANY_ORDER, FLOAT64, numbers
from twinprobe._measure.elements import turned as turned_like
from twinprobe._measure.tolerance import Gap, compare, transposed
from twinprobe._runs.dtypes import COMPLEX, EPSILON
from twinprobe._runs.names import IMPLEMENTATION_SETTINGS, OpName
from twinprobe._runs.tensors.elements import HostTensor

Floats = NDArray[np.float64]
Key = tuple[str, str]  # the path of a layer of the raw model and the name of its parameter

# How far rounding may move a gradient: by so many epsilons of the element and of what is usual in its tensor, which
# stands for what was added up; and of all gradients together (the norm), for those that are zero in theory.
_ROUNDINGS, _OF_ALL = 64.0, 16.0
_FURTHEST = 2.0**-6  # parameters that are further apart have not drifted by rounding
# A step is a moment of the gradients divided by the root of another: twice the relative error, once more as a margin.
_AMPLIFIED, _WHOLE = 4.0, 2.0  # whole: from a step one way to a step the other way


@dataclass
class _Parameter:
    """One pair of parameters over all steps, by element of the base's."""

    before: tuple[Floats, Floats]  # both sides, before the step
    gradients: tuple[Floats, Floats] | None
    epsilon: float
    doubt: Floats | float = 0.0  # the share of a gradient that may be rounding, at its worst so far
    excused: Floats | float = 0.0  # how far apart the elements may be because of that

    @property
    def drift(self) -> float:
        size = float(np.linalg.norm(self.before[1]))
        return float(np.linalg.norm(self.before[0] - self.before[1])) / size if size else 0.0


class Updates:
    """Compares parameters after each step; ``begin`` is called before the optimizers make it."""

    def __init__(self, raw: Model, base: Model, options: Options) -> None:
        self._models = raw, base
        self._tolerance = options.tolerance
        self._by_gradients = options.default_tolerance
        self._known: dict[Key, _Parameter] = {}
        self._groups: list[list[tuple[list[Any], dict[str, Any]]]] = [[], []]  # of both optimizers, with their settings

    def begin(self, tested: LiveRun, reference: LiveRun, matches: Matches) -> None:
        """Keep settings, parameters and gradients as they are before the step; the default tolerance needs the latter.
        After the last step, a list of learning rates may have ended."""
        self._groups = [model.adapter.settings(model.optimizer) for model in self._models]
        if not self._by_gradients:
            return
        for row, (call, name), (partner, partner_name), rule in parameter_pairs(tested, reference, matches.rows):
            if row in matches.groups:
                continue
            held = self._both((call, name), (partner, partner_name), rule)
            if held is None or held[0].dtype in COMPLEX or held[0].shape != held[1].shape:
                continue
            found = self._both((call, name), (partner, partner_name), rule, gradients=True)
            gradients = None if found is None or found[0].shape != found[1].shape else _arrays(found)
            kinds = (*held, *(found or ()))
            epsilon = max(EPSILON.get(tensor.dtype, 0.0) for tensor in kinds)
            parameter = self._known.setdefault((call.body, name), _Parameter(_arrays(held), gradients, epsilon))
            parameter.before, parameter.gradients = _arrays(held), gradients
        self._doubt()

    def _doubt(self) -> None:
        """How much of each gradient may be rounding."""
        known = [parameter for parameter in self._known.values() if parameter.gradients is not None]
        if not known:
            return
        # What is computed with parameters that have drifted apart is off by that much, too.
        drift = min(float(np.median([parameter.drift for parameter in known])), _FURTHEST)
        total = float(
            np.sqrt(sum(np.square(parameter.gradients[1]).sum() for parameter in known if parameter.gradients))
        )
        for parameter in known:
            assert parameter.gradients is not None
            target, golden = parameter.gradients
            size = np.abs(golden)
            unit = max(parameter.epsilon, drift)
            usual = float(np.sqrt(np.square(golden).mean())) if golden.size else 0.0
            rounding = unit * (_ROUNDINGS * (size + usual) + _OF_ALL * total / np.sqrt(max(golden.size, 1)))
            with np.errstate(all="ignore"):
                share = np.minimum(np.abs(target - golden), rounding) / size
            # A gradient of zero on both sides moves nothing.
            share = np.where((target == 0) & (golden == 0), 0.0, np.nan_to_num(share, nan=0.0, posinf=_WHOLE))
            parameter.doubt = np.maximum(parameter.doubt, share)  # moments remember it

    def compare(self, tested: LiveRun, reference: LiveRun, matches: Matches, step: int) -> list[Finding]:
        """Measure the parameters that belong together as they are now."""
        findings = []
        for row, own, other, rule in parameter_pairs(tested, reference, matches.rows):
            if row in matches.groups:
                parts = [
                    [self._parameter(model, *parameter_of(run, member)) for member in rows]
                    for model, run, rows in zip(self._models, (tested, reference), matches.groups[row], strict=True)
                ]
                if any(part is None for side in parts for part in side):
                    continue
                tensor, golden = put_together(*([part[0] for part in side if part] for side in parts))
            else:
                held = self._both(own, other, rule)
                if held is None:
                    continue
                tensor, golden = held
            gap = compare(tensor, golden, self._tolerance)
            known = self._known.get((own[0].body, own[1]))
            if known is not None and row not in matches.groups:
                gap = self._excused(gap, known, _arrays((tensor, golden)), (tensor.dtype, golden.dtype))
            findings.append(
                Finding(
                    step, WEIGHT_PHASE, own[0].text, other[0].text, "parameter after the step", own[1], gap, True,
                    str(list(tensor.shape)), str(list(golden.shape)), tensor.dtype, rule, row,
                )
            )  # fmt: skip
        return findings

    def _excused(self, gap: Gap, known: _Parameter, now: tuple[Floats, Floats], dtypes: tuple[str, str]) -> Gap:
        """The same gap, without the elements that a gradient in doubt has moved."""
        target, golden = now
        if target.shape != known.before[0].shape or not (np.isfinite(target).all() and np.isfinite(golden).all()):
            return gap
        moved = max(
            float(np.abs(after - before).max(initial=0.0)) for after, before in zip(now, known.before, strict=True)
        )
        known.excused = known.excused + moved * np.minimum(_WHOLE, _AMPLIFIED * np.asarray(known.doubt))
        if gap.same:
            return gap
        atol, rtol = self._tolerance.of(*dtypes)
        beyond = int(np.count_nonzero(np.abs(target - golden) > atol + rtol * np.abs(golden) + known.excused))
        why = f"{beyond} of {golden.size} elements differ" if beyond else ""
        return replace(gap, same=not beyond, why=why, mismatched=beyond)

    def settings_that_differ(self, *, with_effect: bool) -> str:
        """``a setting of the optimizer differs: lr: 0.002 against 0.001``, for each setting; parameter by parameter.

        By eps, frameworks mean different things: it is told where parameters differ.
        """
        sides = []
        for model, groups in zip(self._models, self._groups, strict=True):
            settings: dict[str, dict[str, Any]] = {}
            names = {
                id(tensor): f"{path}.{name}".lstrip(".")
                for path, layer in model.paths.layer.items() for name, tensor in model.adapter.parameters(layer).items()
            }  # fmt: skip
            for held, values in groups:
                settings.update({names[id(one)]: values for one in held if id(one) in names})
            sides.append(settings)
        # Parameters have other names in another framework: what all of one model share is compared then.
        common = [name for name in sides[0] if name in sides[1]]
        pairs = [(sides[0][name], sides[1][name]) for name in common]
        if not pairs and all(sides):
            pairs = [(next(iter(sides[0].values())), next(iter(sides[1].values())))]
        alike = self._models[0].adapter.name == self._models[1].adapter.name
        without = IMPLEMENTATION_SETTINGS if with_effect or alike else (*IMPLEMENTATION_SETTINGS, "eps")
        found = dict.fromkeys(words for pair in pairs for words in differing_settings(*pair, without=without))
        words = f"a setting of the optimizer differs: {'; '.join(found)}" if found else ""
        formula = other_formula(*(type(model.optimizer).__name__ for model in self._models)) if with_effect else ""
        return words if not formula else f"{words}; {formula}" if words else formula

    def _both(
        self, own: tuple[OpName, str], other: tuple[OpName, str], rule: str, *, gradients: bool = False
    ) -> tuple[HostTensor, HostTensor] | None:
        """A parameter of both models as it is now, or its gradient, stored the same way round."""
        held = [
            self._parameter(model, *which, gradients=gradients)
            for model, which in zip(self._models, (own, other), strict=True)
        ]
        if held[0] is None or held[1] is None:
            return None
        (tensor, turned), (golden, golden_turned) = held[0], held[1]
        tensor = transposed(tensor) if turned != golden_turned else tensor
        return (turned_like(tensor, [ANY_ORDER], golden) if rule.endswith(REORDERED) else tensor), golden

    def _parameter(
        self, model: Model, call: OpName, name: str, *, gradients: bool = False
    ) -> tuple[HostTensor, bool] | None:
        """A parameter as it is now, or its gradient, and whether it is stored [in, out]."""
        layer = model.paths.layer.get(call.body)
        value = model.adapter.parameters(layer).get(name) if layer is not None else None
        if value is not None and gradients:
            value = model.adapter.gradient(model.model, value)
        if value is None:
            return None
        return model.adapter.to_host(value), model.adapter.is_transposed(layer, name)


def _arrays(pair: tuple[HostTensor, HostTensor]) -> tuple[Floats, Floats]:
    """Copies: the optimizer writes to what these tensors show."""
    target, golden = (np.array(numbers(tensor.dtype, tensor.data, FLOAT64), dtype=np.float64) for tensor in pair)
    return target, golden
