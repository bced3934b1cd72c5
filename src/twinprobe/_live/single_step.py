"""Every layer fed with the reference's own inputs and gradients, so that no error is carried from layer to layer.

What arrives at a layer is compared and then replaced; so a difference lies either in the layer itself or in the code
just before it. The replacement goes both ways: forward by value, backward by gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from twinprobe._live.findings import BACKWARD_PHASE, FORWARD_PHASE, Finding
from twinprobe._live.frameworks.adapter import OnGradient
from twinprobe._live.live_run import LiveRun
from twinprobe._live.pairing.layer_map import LayerMap
from twinprobe._live.pairing.matching import Matches, match_runs
from twinprobe._live.running import KeptState, Masks, Model, Options, Pass, run_model
from twinprobe._measure.tolerance import Tolerance, compare
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.tensors.elements import HostTensor

INPUT_PLACE, GRADIENT_PLACE = "input as computed", "gradient as computed"


def run_fed(
    raw: Model,
    reference: Pass,
    base: Model,
    options: Options,
    layer_map: LayerMap,
    masks: Masks | None,
    kept: KeptState,
) -> tuple[Pass, list[Finding]]:
    """Run the raw model twice: once to see which calls belong together, once with every layer fed."""
    seen = run_model(raw, options, layer_map, masks)
    kept.put_back_buffers(raw)
    matches = match_runs(seen.run, reference.run, layer_map, raw.paths, base.paths)
    feeder = Feeder(raw, seen.run, reference.run, matches, options)

    around = partial(raw.adapter.around_calls, raw.model, feeder.before, feeder.after)
    return run_model(raw, options, layer_map, masks, around), feeder.findings


class Feeder:
    """Knows the reference's value for every tensor that goes into or comes out of a layer of the raw model."""

    def __init__(self, raw: Model, seen: LiveRun, reference: LiveRun, matches: Matches, options: Options) -> None:
        self._adapter = raw.adapter
        self._paths = raw.paths
        self._tolerance: Tolerance = options.tolerance
        self._phases = (options.phase != "backward", options.phase != FORWARD)
        self._reference = reference
        self._prefix: dict[int, str] = {}
        for op in map(parse_op, matches.calls):
            layer = raw.paths.layer.get(op.body) if op.is_module and op.body else None
            if layer is not None and op.text not in matches.doubtful:
                self._prefix[id(layer)] = op.text.rpartition(".forward.")[0]
        # (raw call, tensor) -> (raw row, base row, base call).
        self._partner: dict[tuple[str, str], tuple[int, int, str]] = {}
        ops, names, golden_ops = seen.columns["op"], seen.columns["name"], reference.columns["op"]
        for row, golden_row, _ in matches.rows:
            call = seen.ops[ops[row]]
            name = names[row].removeprefix(f"{call}.")
            self._partner[call, name] = row, golden_row, reference.ops[golden_ops[golden_row]]
        self._count: dict[int, int] = {}
        self._under_way: list[tuple[int, int]] = []
        self.findings: list[Finding] = []

    def before(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Compare what arrives and put the reference's values in its place."""
        key = id(module)
        number = self._count.get(key, 0)
        self._count[key] = number + 1
        self._under_way.append((key, number))
        prefix = self._prefix.get(key)
        if prefix is None:
            return None
        made: dict[int, Any] = {}  # a tensor given twice stays one tensor
        numbers: dict[int, int] = {}  # of the inputs' gradients, as a recorder counts them
        counter = count()
        in_place = bool(getattr(module, "inplace", False))

        def feed(tensor: Any, name: str) -> Any:
            differentiable = self._is_float(tensor)
            # PyTorch's recorder counts a tensor that is given twice again.
            if differentiable and (id(tensor) not in numbers or self._adapter.name == "pytorch"):
                numbers.setdefault(id(tensor), next(counter))
            call, place = f"{prefix}.forward.{number}", f"input.{name}"
            value = self._value(call, place, tensor)
            if value is not None and self._phases[0]:
                self._note(call, place, self._adapter.to_host(tensor), value, FORWARD_PHASE, INPUT_PLACE)
            if value is None or not differentiable or in_place:
                return tensor
            if id(tensor) not in made:
                # What the layer hands back is recorded already; from here on the reference's gradient goes.
                leaving = partial(self._value, f"{prefix}.backward.{number}", f"output.{numbers[id(tensor)]}")
                made[id(tensor)] = self._adapter.substitute(tensor, value, leaving)
            return made[id(tensor)]

        fed = tuple(_mapped(item, str(index), feed, self._adapter.is_tensor) for index, item in enumerate(args))
        named = {name: _mapped(item, name, feed, self._adapter.is_tensor) for name, item in kwargs.items()}
        return fed, named

    def after(self, module: Any, output: Any) -> Any:
        """Hand on the reference's result instead of the layer's own."""
        key, number = id(module), 0
        while self._under_way:
            started, number = self._under_way.pop()
            if started == key:
                break
        prefix = self._prefix.get(key)
        if prefix is None:
            return None
        counter = count()

        def feed(tensor: Any, name: str) -> Any:
            index = next(counter)
            value = self._value(f"{prefix}.forward.{number}", f"output.{name}", tensor)
            if value is None or not self._is_float(tensor):
                return tensor
            return self._adapter.substitute(tensor, value, self._arriving(f"{prefix}.backward.{number}", index))

        if type(output) is tuple:
            return tuple(_mapped(item, str(place), feed, self._adapter.is_tensor) for place, item in enumerate(output))
        return _mapped(output, "0", feed, self._adapter.is_tensor)

    def _arriving(self, name: str, index: int) -> OnGradient:
        def arrived(gradient: HostTensor) -> HostTensor | None:
            value = self._value(name, f"input.{index}", gradient)
            if value is not None and self._phases[1]:
                self._note(name, f"input.{index}", gradient, value, BACKWARD_PHASE, GRADIENT_PLACE)
            return value

        return arrived

    def _value(self, name: str, tensor_name: str, like: Any) -> HostTensor | None:
        """The reference's value, where it has one of this shape."""
        partner = self._partner.get((name, tensor_name))
        value = self._reference.tensor(partner[1]) if partner is not None else None
        return value if value is not None and value.shape == tuple(int(size) for size in like.shape) else None

    def _note(self, name: str, tensor: str, target: HostTensor, golden: HostTensor, phase: str, place: str) -> None:
        row, _, base = self._partner[name, tensor]
        gap = compare(target, golden, self._tolerance)
        shapes = str(list(target.shape)), str(list(golden.shape))
        self.findings.append(
            Finding(0, phase, name, base, place, tensor, gap, True, *shapes, target.dtype, "single step", row)
        )

    def _is_float(self, tensor: Any) -> bool:
        text = str(tensor.dtype).lower()
        return "float" in text or "complex" in text


def _mapped(value: Any, name: str, feed: Callable[[Any, str], Any], is_tensor: Callable[[Any], bool]) -> Any:
    if is_tensor(value):
        return feed(value, name)
    kind = type(value)
    if kind in (list, tuple):
        return kind(_mapped(item, f"{name}.{index}", feed, is_tensor) for index, item in enumerate(value))
    if kind is dict:
        return {key: _mapped(item, f"{name}.{key}", feed, is_tensor) for key, item in value.items()}
    return value
