"""A folder that shows one call's fault without TwinProbe: the inputs, a short script, and a README for a bug report."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe._judge.kinds.by_tensors import tensor_kinds
from twinprobe._judge.rules import SUSPICIOUS
from twinprobe._replay.functions import Bound, paths_of, run_bound, with_slots
from twinprobe._replay.recorded import Call, CannotReplay, FrameworkConstant, Slot, mapped, slots_in
from twinprobe._replay.replay import Error, Replay, SideReplay, distance, replay_pair
from twinprobe._report.console import visible
from twinprobe._report.files import Staging, prepare_folder
from twinprobe._runs.dtypes import EPSILON, dtype_name
from twinprobe._runs.tensors.containers import SAFETENSORS, safetensors_bytes
from twinprobe._runs.tensors.foreign import host_tensor
from twinprobe.errors import BadInput

_CODES = {dtype: code for code, dtype in SAFETENSORS.items()}
_MOST_WAYS = 256  # in which an axis of the result may lie in the inputs
_SHOWN = 5  # of the worst elements
_SAME = 1e-9  # a slice of a result in float64 and the result of a slice


@dataclass(repr=False)
class Reproducer:
    """What was written, and how far it could be cut down."""

    folder: Path
    files: list[Path]
    replay: Replay
    shows: str
    """The value that shows the fault, or the worst one where there is none."""
    shapes: dict[str, list[int]]

    @property
    def summary(self) -> str:
        """What the command prints."""
        lines = [
            self.replay.sentence,
            f"  {self.shows}; inputs " + ", ".join(f"{k} {v}" for k, v in self.shapes.items()),
        ]
        if self.replay.off == "neither":
            lines.append("  the script exits 0 here; it exits 1 on a machine that shows the fault")
        return "\n".join([*lines, *(f"  written to {file}" for file in self.files)])

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, texts and numbers."""
        return {
            "folder": str(self.folder), "files": [str(file) for file in self.files], "shows": self.shows,
            "shapes": self.shapes, "replay": self.replay.to_dict(),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<Reproducer {self.folder}: {self.replay.sentence}>"


@dataclass
class _Case:
    """One value of one side's call: what gives it, and what was recorded."""

    bound: Bound
    arriving: list[Any]
    backward: bool
    index: int  # among the outputs, or among the gradients of differentiable inputs
    recorded: Any
    may_eps: float
    """What the operation may lose."""

    def value(self, *, reference: bool) -> Any:
        """The value as this machine computes it."""
        made = run_bound(self.bound, self.arriving if self.backward else [], reference=reference)
        return made[int(self.backward)][self.index]

    def sliced(self, cuts: dict[int, int], axis: int, begin: int, end: int) -> _Case:
        """The case with only a part of an axis: ``cuts`` maps the ids of inputs to the axis that is cut."""

        def cut(slot: Slot) -> Slot:
            if id(slot) not in cuts:
                return slot
            value = slot.value.narrow(cuts[id(slot)], begin, end - begin).contiguous()
            return replace(slot, shape=tuple(value.shape), file=None, value=value)

        bound, arriving = with_slots(self.bound, self.arriving, cut)
        return replace(self, bound=bound, arriving=arriving, recorded=self.recorded.narrow(axis, begin, end - begin))

    @property
    def epsilon(self) -> float:
        return EPSILON[dtype_name(self.recorded.dtype)]

    def slots(self) -> list[Slot]:
        """Every tensor that the call takes, once."""
        trees = [self.bound.args, self.bound.kwargs, self.arriving if self.backward else []]
        return list({id(slot): slot for slot in slots_in(trees)}.values())


def write_reproducer(target: Call, golden: Call | None, folder: Path, *, shrink: bool = False, room: int) -> Reproducer:
    """Write the folder for the side that is off; for the target where none is."""
    replayed = replay_pair(target, golden, room=room)
    who, call = ("golden", golden) if replayed.off == "golden" and golden is not None else ("target", target)
    errors = {value.name: getattr(value, who) for value in replayed.values if getattr(value, who) is not None}
    if not errors:
        raise BadInput(replayed.sentence)
    worst = max(errors, key=lambda name: errors[name].times)
    if errors[worst].times <= SUSPICIOUS:
        worst = next(iter(errors))
    error: Error = errors[worst]
    try:
        side = SideReplay(call, {}, room, replayed.way)
        backward, index = worst.startswith("backward."), int(worst.rpartition(".")[2])
        recorded = (side.call.leaving if backward else list(slots_in(side.call.outputs)))[index].value
        case = _Case(side.bound, side.call.arriving, backward, index, recorded, error.may_eps)
        if shrink and error.times > SUSPICIOUS:
            case = _shrunk(case)
        names = _names(case)
        script = _script(case, names, replayed, who, call)
    except CannotReplay as problem:
        raise BadInput(f"{call.name} cannot be reproduced: {problem}") from None
    prepare_folder(folder)
    with Staging() as staging:
        files = [folder / name for name in ("inputs.safetensors", "reproduce.py", "README.md")]
        tensors = {name: slot.value for slot, name in names} | {"recorded": case.recorded}
        staging.file(files[0]).write_bytes(safetensors(tensors))
        staging.file(files[1]).write_text(script, encoding="utf-8")
        staging.file(files[2]).write_text(_readme(case, names, who, call, worst), encoding="utf-8")
    shapes = {name: list(slot.shape) for slot, name in names}
    return Reproducer(folder, files, replayed, f"{who}'s {worst}", shapes)


# The smallest slice that still shows the fault.


def _shrunk(case: _Case) -> _Case:
    """Halve one axis after the other, as long as the half is a result by itself and shows the fault."""
    for axis in range(case.recorded.ndim):
        if case.recorded.shape[axis] < 2:
            continue
        cuts = _cuts(case, axis)
        if cuts is None:
            continue
        full, own = case.value(reference=True), case.value(reference=False).to(case.recorded.dtype)
        begin, end = 0, case.recorded.shape[axis]
        while end - begin > 1:
            middle = (begin + end) // 2
            faulty = []
            for first, last in ((begin, middle), (middle, end)):
                recorded, healthy, wide = (
                    part.narrow(axis, first, last - first) for part in (case.recorded, own, full)
                )
                off = _eps(case, recorded, wide)
                if off > 2 * SUSPICIOUS * max(case.may_eps, _eps(case, healthy, wide)):
                    faulty.append((-off, first, last))
            if not faulty:
                break
            _, begin, end = min(faulty)
        part = case.sliced(cuts, axis, begin, end)
        if _close(part.value(reference=True), full.narrow(axis, begin, end - begin)):  # a causal mask counts places
            case = part
    return case


def _eps(case: _Case, value: Any, reference: Any) -> float:
    """How far a value is from the reference, in epsilons of what was recorded."""
    whole, _, norm, _ = distance(value, reference)
    return whole / (norm * case.epsilon) if norm > 0 else (0.0 if whole == 0 else float("inf"))


def _cuts(case: _Case, axis: int) -> dict[int, int] | None:
    """Where an axis of the result lies in the inputs: found by trying, in float64, whether a slice gives the slice."""
    size = case.recorded.shape[axis]
    full = case.value(reference=True)
    choices: list[list[tuple[int, int] | None]] = []
    for slot in case.slots():
        places = [dimension for dimension, length in enumerate(slot.shape) if length == size]
        # The same place counted from the front or from the back comes first.
        likely = (axis, axis - case.recorded.ndim + len(slot.shape))
        places.sort(key=lambda dimension, likely=likely: dimension not in likely)  # type: ignore[misc]
        choices.append([*((id(slot), dimension) for dimension in places), None])
    half = max(size // 2, 1)
    for choice in islice(product(*choices), _MOST_WAYS):
        cuts = dict(place for place in choice if place is not None)
        if not cuts:
            continue
        try:
            part = case.sliced(cuts, axis, 0, half).value(reference=True)
        except (CannotReplay, IndexError):
            continue
        wanted = full.narrow(axis, 0, half)
        if part is not None and part.shape == wanted.shape and _close(part, wanted):
            return cuts
    return None


def _close(value: Any, reference: Any) -> bool:
    whole, _, norm, _ = distance(value, reference)
    return whole <= _SAME * norm


# The files.


def safetensors(tensors: dict[str, Any]) -> bytes:
    """Tensors of PyTorch as a safetensors file."""
    held = {}
    # The widest first: then each begins at a multiple of its width.
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        kind = dtype_name(tensor.dtype)
        if not tensor.numel():
            raise CannotReplay(f"{name} has no elements")
        if kind not in _CODES:
            raise CannotReplay(f"{name} is {kind}, which a safetensors file cannot hold")
        held[name] = host_tensor(name, tensor)
    return b"".join(safetensors_bytes(held))


def _names(case: _Case) -> list[tuple[Slot, str]]:
    """Names for the tensors that the script loads."""
    arriving = {id(slot) for slot in slots_in(case.arriving)}
    inputs = [slot for slot in case.slots() if id(slot) not in arriving]
    named = [(slot, f"input.{number}") for number, slot in enumerate(inputs)]
    came = [slot for slot in case.slots() if id(slot) in arriving]
    return named + [(slot, f"gradient.{number}") for number, slot in enumerate(came)]


_SCRIPT = '''\
"""{title}
Usage: python reproduce.py [DEVICE]; the word recorded in place of a device judges the recorded values alone."""
import json
import sys
from math import prod
from pathlib import Path

import torch

EPS, LIMIT, LARGEST = {eps!r}, {limit:.4g}, {largest:.4g}  # the limit is in eps; larger numbers fill masks
KINDS = {kinds}
raw = bytearray(Path(__file__).with_name("inputs.safetensors").read_bytes())
start, tensors = 8 + int.from_bytes(raw[:8], "little"), {{}}
for name, t in json.loads(raw[8:start]).items():
    kind, at = KINDS[t["dtype"]], start + t["data_offsets"][0]
    tensors[name] = torch.frombuffer(raw, dtype=kind, offset=at, count=prod(t["shape"])).reshape(t["shape"])


def run(device, wide):
    def x(name):
        t = tensors[name].to(device, copy=True)
        return t.double() if wide and t.is_floating_point() else t
{body}


def error(value):
    keep = reference.abs() < LARGEST
    return float((value.cpu().double() - reference)[keep].norm() / reference[keep].norm().clamp_min(1e-300) / EPS)


device = sys.argv[1] if sys.argv[1:] else {device}
reference = run("cpu", wide=True)  # the same call in float64
recorded = error(tensors["recorded"])
here = recorded if device == "recorded" else error(run(device, wide=False))
print(f"recorded: {{recorded:.4g}} eps off; {{device}}: {{here:.4g}} eps off; allowed: {{LIMIT}} eps")
sys.exit(not here <= LIMIT)
'''


def _script(case: _Case, names: list[tuple[Slot, str]], replayed: Replay, who: str, call: Call) -> str:
    import torch

    name_of = {id(slot): name for slot, name in names}
    came_in = {id(slot) for slot in slots_in(case.arriving)}
    leaves = [slot for slot in case.slots() if slot.requires_grad and id(slot) not in came_in]
    lines = []
    local: dict[int, str] = {}
    if case.backward:
        lines.append("leaves = [" + ", ".join(f'x("{name_of[id(slot)]}").requires_grad_()' for slot in leaves) + "]")
        local = {id(slot): f"leaves[{number}].clone()" for number, slot in enumerate(leaves)}

    def text(value: Any) -> str:
        if isinstance(value, Slot):
            return local.get(id(value)) or f'x("{name_of[id(value)]}")'
        return _literal(value, text)

    args = [text(value) for value in case.bound.args]
    for key, value in case.bound.kwargs.items():
        if not key.isidentifier() or keyword.iskeyword(key):
            raise CannotReplay(f"{visible(key)[:40]!r} is not the name of an argument")
        args.append(f"{key}={text(value)}")
    written = f"{case.bound.function.written}({', '.join(args)})"
    paths = [path for path, _ in paths_of(_result(case))]
    if case.backward:
        ends = [(path, slot) for path, slot in zip(paths, case.arriving, strict=False) if isinstance(slot, Slot)]
        made = [f"made{path}" for path, _ in ends]
        came = [f'x("{name_of[id(slot)]}").to(made{path}.dtype)' for path, slot in ends]
        lines.append(f"made = {written}")
        lines.append(
            f"grads = torch.autograd.grad([{', '.join(made)}], leaves, [{', '.join(came)}], allow_unused=True)"
        )
        floats = [slot for slot in case.slots() if id(slot) not in came_in and slot.value.is_floating_point()]
        lines.append(f"return grads[{leaves.index(floats[case.index])}]")
    else:
        lines.append(f"return {written}{paths[case.index]}")
    kind = dtype_name(case.recorded.dtype)
    codes = {_CODES[dtype_name(slot.value.dtype)]: str(slot.value.dtype) for slot, _ in names}
    codes[_CODES[kind]] = str(case.recorded.dtype)
    reference = case.value(reference=True)
    healthy = _eps(case, case.value(reference=False).to(case.recorded.dtype), reference)
    off = _eps(case, case.recorded, reference)
    limit = SUSPICIOUS * max(case.may_eps, healthy)
    if off <= limit and off > 2 * healthy:  # a few wrong rows among many
        limit = (off * healthy) ** 0.5
    device = str(call.run.settings.get("device", "cpu")).partition(":")[0]
    device = device if device in ("cpu", "cuda", "npu", "xpu", "mps") else "cpu"
    shown = f"{who} was {off:.4g} eps off the float64 result."
    if replayed.off == "neither":
        shown = f"{off:.3g} eps off, as it may be."
    return _SCRIPT.format(
        title=f"{case.bound.function.written} in {kind}: {shown}", eps=case.epsilon, limit=limit,
        largest=torch.finfo(case.recorded.dtype).max / 4,
        kinds="{" + ", ".join(f'"{code}": {dtype}' for code, dtype in sorted(codes.items())) + "}",
        body="\n".join(f"    {line}" for line in lines),
        device='"cpu"' if device == "cpu" else f'"{device}" if torch.{device}.is_available() else "recorded"',
    )  # fmt: skip


def _literal(value: Any, inner: Any) -> str:  # noqa: PLR0911  one return for each kind of value
    """A plain value as Python writes it. Texts go through repr: nothing of a dump becomes code."""
    if isinstance(value, list | tuple):
        items = ", ".join(inner(item) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items},)"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{str(key)!r}: {inner(item)}" for key, item in value.items()) + "}"
    if isinstance(value, FrameworkConstant):
        if value.kind == "device":
            return "device"
        name = f"torch.{value.text.rpartition('.')[2]}"
        return f"torch.float64 if wide else {name}" if value.kind == "dtype" and "float" in name else name
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    if value is ...:
        return "..."
    assert value is None or isinstance(value, int | float | bool | str | slice)
    return repr(value)


def _result(case: _Case) -> Any:
    import torch

    def argument(leaf: Any) -> Any:
        return leaf.value.clone() if isinstance(leaf, Slot) else leaf

    plain = mapped([*case.bound.args], argument)
    if any(isinstance(leaf, FrameworkConstant) for leaf in (*plain, *case.bound.kwargs.values())):
        return torch.empty(0)  # a cast gives one tensor
    with torch.no_grad():
        return case.bound.function.run(*plain, **mapped(case.bound.kwargs, argument))


def _readme(case: _Case, names: list[tuple[Slot, str]], who: str, call: Call, worst: str) -> str:
    reference = case.value(reference=True)
    kind = dtype_name(case.recorded.dtype)
    settings = call.run.settings
    function = case.bound.function.written
    off = _eps(case, case.recorded, reference)
    here = _eps(case, case.value(reference=False).to(case.recorded.dtype), reference)
    what = "the gradient of an input" if case.backward else "the result"
    lines = [
        f"# `{function}` in {kind}: {what} is {off:.4g} eps off", "",
        f"`{_plain(call.name)}` ({worst}) of a recorded run, against the same call in float64 on the same inputs.", "",
        "| | error (eps) |", "| --- | --- |",
        f"| recorded by the {who} | {off:.4g} |", f"| this machine's CPU in {kind} | {here:.4g} |",
        f"| what the operation may lose | {case.may_eps:.3g} |", "",
        f"- framework: {_plain(call.run.framework)} {_plain(settings.get('version', 'of unknown version'))}",
        f"- device: {_plain(settings.get('device', 'unknown'))}",
    ]  # fmt: skip
    flags = {key: value for key, value in settings.items() if key not in ("version", "device")}
    lines += [f"- settings: {_plain(', '.join(f'{key}={value}' for key, value in flags.items()))}"] if flags else []
    arrays = [tensor.detach().double().numpy() for tensor in (case.recorded, reference) if not tensor.is_complex()]
    if len(arrays) == 2:
        # Noise is no kind, and its size would be given in epsilons of float64.
        found_kinds = tensor_kinds(*arrays, expected=case.may_eps * case.epsilon)
        kinds = [kind_found for kind_found in found_kinds if kind_found.name != "noise"]
        lines += [
            f"- kind of difference: {_plain(kind_found.sentence.replace('golden', 'float64'))}"
            for kind_found in kinds[:2]
        ]
    lines += ["", "| tensor | dtype | shape | min | max |", "| --- | --- | --- | --- | --- |"]
    for slot, name in [*names, (Slot(tuple(case.recorded.shape), kind, None, False, case.recorded), "recorded")]:
        value = slot.value
        ends = (
            [f"{float(end):.6g}" for end in (value.min(), value.max())]
            if value.numel() and not value.is_complex()
            else ["", ""]
        )
        lines.append(f"| {name} | {dtype_name(value.dtype)} | {list(value.shape)} | {ends[0]} | {ends[1]} |")
    if len(arrays) == 2 and arrays[0].size:
        lines += ["", "| element | recorded | float64 |", "| --- | --- | --- |"]
        with np.errstate(invalid="ignore"):
            gap = np.nan_to_num(np.abs(arrays[0] - arrays[1]), nan=np.inf).reshape(-1)
        for element in np.argsort(-gap, kind="stable")[:_SHOWN].tolist():
            place = [int(index) for index in np.unravel_index(element, arrays[0].shape)]
            lines.append(f"| {place} | {arrays[0].reshape(-1)[element]:.9g} | {arrays[1].reshape(-1)[element]:.9g} |")
    lines += ["", "Run `python reproduce.py [DEVICE]`: it needs PyTorch only, prints the errors of the recorded",
              "values and of this machine's, and exits 1 while the fault is there.", ""]  # fmt: skip
    return "\n".join(lines)


def _plain(text: Any) -> str:
    """Foreign text inside a line of Markdown."""
    shown = visible(str(text))[:300]
    return "".join(f"&#{ord(sign)};" if sign in "`|<>[]!" else sign for sign in shown)
