"""Watching: a few numbers for each step of a training, cheap enough to leave on. See docs/watch.md.

This file knows no framework: it has the steps, the series, the stream and the loggers.
"""

from __future__ import annotations

import atexit
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from twinprobe._record.calls import tensors_in
from twinprobe._record.config import RecordConfig
from twinprobe._record.entries import Problems, logger, speak
from twinprobe._record.recorder import OptimizerCycle
from twinprobe._record.writer import is_disk_error
from twinprobe._runs.watch import DIGEST, MISSING, STREAM, WatchStream
from twinprobe.errors import BadInput, MissingPackage, did_you_mean

_MOST_INPUTS, MOST_ELEMENTS = 8, 1 << 20  # inputs that get a digest, and elements that it looks at
ODD = 0x2545F4914F6CDD1D  # a multiplier that spreads bits
Read = Callable[[], tuple[Sequence[int], NDArray[np.float64]]]  # series and their values, when these are there


def mixed_digests(bits: Any, weights: Any) -> tuple[Any, Any]:
    """Two digests of an input, a row of whose bits is one sample: of the samples in any order, and in their order.

    The same wherever they are computed: in arrays of NumPy, or in tensors on a device.
    """
    rows = (bits * weights[: bits.shape[1]]).sum(1)
    rows = (rows ^ (rows >> 29)) * ODD
    samples = (rows ^ (rows >> 32)) & (DIGEST - 1)
    whole = (samples * weights[: len(samples)]).sum()
    return samples.sum() & (DIGEST - 1), (whole ^ (whole >> 32)) & (DIGEST - 1)


def named_inputs(args: Any, kwargs: Any, tensor_class: type) -> Iterator[tuple[str, Any]]:
    """The first tensors among the arguments of a call, by position or keyword."""
    given = {str(index): value for index, value in enumerate(args)} | kwargs
    tensors = ((name, tensor) for name, value in given.items() for tensor in tensors_in(value, tensor_class, []))
    return islice(tensors, _MOST_INPUTS)


def before_exit(act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` when this process ends, by os._exit() too; returns how to take that back."""
    original, own = os._exit, os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() == own and not done:  # children of a fork end like this, as workers that load data do
            act()
        original(status)

    def take_back() -> None:
        done.append(True)
        atexit.unregister(act)
        if os._exit is leave:
            os._exit = original

    done: list[bool] = []
    os._exit = leave
    atexit.register(act)
    return take_back


class Step:
    """The numbers of one step: those of the host, and those that a device is still computing."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.numbers: list[tuple[int, float]] = []
        self.pending: list[Read] = []
        self.backward = False
        self.forwards = 0
        self.ended = False  # step() was called


class _Layout:
    """Where the numbers of a step belong: the same in most steps, and then worked out once."""

    def __init__(
        self, places: list[int], names: list[str], gradients: list[int], residues: list[tuple[int, int]]
    ) -> None:
        self.places = places
        self.index = np.array(places, dtype=np.int64)
        counts = np.bincount(self.index, minlength=len(names))
        self.repeated: list[int] = np.flatnonzero(counts > 1).tolist()  # several calls of one module in a step
        self.known = counts > 0
        self.gradients = np.array([place for place in gradients if self.known[place]], dtype=np.int64)
        self.known[names.index("grad_norm")] |= len(self.gradients) > 0
        here = [pair for pair in residues if self.known[pair[0]]]
        self.norms, self.residues = np.array(here, dtype=np.int64).reshape(-1, 2).T
        self.known[self.residues] = True


class Watcher(ABC):
    """Counts steps and writes one row for each. It has the verbs of a recorder.

    A step ends with an optimizer's step. In a program that has no optimizer it ends with ``step()``, otherwise with the
    next call of the model. Each framework's watcher reports these events, and measures tensors in its own way.
    """

    cycle: OptimizerCycle
    tensor_class: Any

    def __init__(self, config: RecordConfig) -> None:
        speak()
        self.config = config
        self.engine = self  # scripts use recorder.engine; a watcher is its own engine
        self.problems = Problems()
        self.active = self.begun = self.attached = False
        self.has_optimizer = False
        self.step = Step(0)
        self._parts: list[Step] = []  # of the step at hand: what one of several optimizers has ended
        self._series: dict[str, int] = {}
        self._names: list[str] = []
        self._gradient_norms: list[int] = []
        self._residues: list[tuple[int, int]] = []
        self._layout: _Layout | None = None
        self._last: Step | None = None  # its numbers are on the way from the device
        self._stream: WatchStream | None = None
        self._failed = False
        self._pid = os.getpid()
        self._written = 0
        self._sinks = [_sink(sink, config.dump_path) for sink in config.sinks]
        self._models: list[Any] = []
        self._handles: list[Any] = []
        self._buffers: list[tuple[str, Any, str]] = []  # a module may replace the tensor
        self._losses: dict[str, list[Any]] = {}  # by where they were seen: log(), output, backward()
        self._noted = False  # the parameters of this step
        self._graded: set[str] = set()  # parameters whose gradients are noted in this step
        self._first_groups: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by optimizer
        self._groups = 0
        self._depth = 0  # of watched calls around the one at hand
        self._observing = False  # this call of the model belongs to a step that is written
        self._stay = before_exit(self.close)

    # -- what a framework knows -------------------------------------------------------------------------------------

    def rank(self) -> int | None:
        """This process's rank, None when not distributed."""
        return None

    @abstractmethod
    def attach(self, models: Any) -> None:
        """Put the hooks in place."""

    @abstractmethod
    def detach(self) -> None:
        """Take the hooks away."""

    @abstractmethod
    def work(self, act: Callable[..., None], *args: Any) -> None:
        """Run the watcher's own work: without gradients; errors are noted, never raised into the training."""

    @property
    @abstractmethod
    def in_backward(self) -> bool:
        """Whether a backward pass is running: what is called in it is recomputed."""

    @abstractmethod
    def is_over(self, model: Any) -> bool:
        """Without an optimizer: whether the step before this call of the model has ended."""

    @abstractmethod
    def note_settings(self) -> None:
        """The state of the generators of random numbers, and what changes the rounding of results."""

    @abstractmethod
    def note_input(self, name: str, tensor: Any) -> None:
        """Digests of one input, and of real numbers the norm."""

    @abstractmethod
    def note_tensor(self, name: str, tensor: Any) -> None:
        """A tensor of one number."""

    @abstractmethod
    def note_output(self, places: list[int], tensor: Any) -> None:
        """Norm, largest magnitude and mean, for these series."""

    @abstractmethod
    def note_norms(self, kind: str, tensors: list[tuple[str, Any]]) -> None:
        """The norm and the largest magnitude of each."""

    @abstractmethod
    def precision(self, tensor: Any) -> float | None:
        """The machine epsilon of its dtype; None where it is not measured."""

    @abstractmethod
    def trained(self) -> Iterable[tuple[str, Any]]:
        """The parameters that are trained, by name."""

    @abstractmethod
    def settings_of(self, optimizer: Any) -> list[dict[str, Any]]:
        """What an update uses: ``lr``, ``betas.0`` and so on, for each group."""

    @abstractmethod
    def hand_over(self, losses: list[Any]) -> None:
        """A step is over, or an optimizer's part of it: its numbers are on their way."""

    def named_models(self, models: Any, kind: Any, title: str) -> Iterator[tuple[str, Any]]:
        """The models, each with the front of its names: its number where there are several."""
        self._models = list(models) if isinstance(models, list | tuple) else [models]
        for index, model in enumerate(self._models):
            if not isinstance(model, kind):
                raise BadInput(f"start(model=...) got {type(model).__name__}, which is not a {title}")
            yield f"{index}." if len(self._models) > 1 else "", model

    def listed(self, names: Iterable[str]) -> list[str]:
        """Those of these names that ``list`` asks for."""
        return [name for name in names if any(fnmatchcase(name, pattern) for pattern in self.config.names)]

    def refuse_unmatched(self, names: Collection[str], candidates: Iterable[str]) -> None:
        """Raise where an entry of ``list`` fits none of these names."""
        for pattern in self.config.names:
            if not any(fnmatchcase(name, pattern) for name in names):
                hint = did_you_mean(pattern, candidates) or None
                raise BadInput(f"list holds '{pattern}', which is not a module", hint=hint)

    # -- the verbs of a recorder ------------------------------------------------------------------------------------

    def start(self, model: Any = None, _token_range: Any = None) -> None:
        """Watch from here on. Hooks stay in place until close(), since an optimizer may step after stop()."""
        if self.begun:
            raise BadInput("recording is already started", hint="call stop() before start()")
        if model is None:
            raise BadInput("level watch needs the model: call start(model=...)")
        if self.config.ranks is not None and (self.rank() or 0) not in self.config.ranks:
            self._failed = True
        self.begun = True
        self.active = self.config.dump_enable and not self._failed and not self.forked
        if self.active and not self.attached:
            path = self.config.dump_path / f"rank{self.rank() or 0}" / STREAM
            if path.exists():
                raise BadInput(
                    "holds an earlier recording, which is not overwritten", where=path, hint="give another dump_path"
                )
            try:
                self.attach(model)
            except BaseException:
                self.detach()
                self.begun = self.active = False
                raise
            self.attached = True

    def stop(self) -> None:
        """What the model computes from here on is not watched."""
        self.begun = self.active = False

    def next_step(self) -> None:
        """step() was called. An optimizer's step that is still to come belongs to the step that is ending."""
        self.begun = False
        self.step.ended = True

    def drop_unused_step(self) -> None:  # noqa: B027 - every recorder has it; a watcher writes no such step
        """A watcher never writes a step in which nothing was seen."""

    def flush(self) -> None:
        """Wait until all finished steps are on disk."""
        self._write_last()
        if self._stream is not None:
            self._guarded("writing", self._stream.flush)

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that watches."""
        return os.getpid() != self._pid

    def close(self) -> None:
        """The recording is over: all of it is written, every hook is gone."""
        self._stay()
        if self.forked:
            return
        if self.attached:
            self.attached = self.begun = self.active = False
            self._guarded("stopping", self.detach)
            if self._parts:  # a step that others of the model's optimizers would have ended
                self.end_parts()
            elif not self.has_optimizer:  # otherwise nothing after its last step is a step
                self.end_step()
        self._write_last()
        if self._stream is not None:
            self._guarded("writing", self._stream.close)
            self._stream = None
            logger.info("watched %d steps, %d series, in %s", self._written, len(self._names), self.config.dump_path)
        for sink in self._sinks:
            close = getattr(sink, "close", None)
            if close is not None:
                self._guarded("closing a logger", close)
        self._sinks = []

    def log(self, **scalars: Any) -> None:
        """Numbers of the user's own for this step, among them the loss."""
        for name, value in scalars.items():
            if not isinstance(value, self.tensor_class):
                self.note(name, value)
            elif name == "loss":
                self.note_loss("log", value)
            else:
                self.note_tensor(name, value)

    # -- what the hooks call ----------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether this step is written at all."""
        number = self.step.number
        return not number % self.config.every and (self.config.steps is None or number in self.config.steps)

    def series(self, name: str) -> int:
        """The column of a series."""
        column = self._series.get(name)
        if column is None:
            column = self._series[name] = len(self._names)
            self._names.append(name)
            if name.startswith("gradient.") and name.endswith(".norm"):
                self._gradient_norms.append(column)
        return column

    def note(self, name: str, value: Any) -> None:
        """One number of this step."""
        self.step.numbers.append((self.series(name), float(value)))

    def enter(self, model: Any, trains: bool, args: Any, kwargs: Any) -> None:
        """The model is called. In a training, a call without gradients is an evaluation, and no step."""
        self._depth += 1
        if self._depth > 1 or not self.active or self.in_backward or (self.has_optimizer and not trains):
            return
        if not self.has_optimizer and self.is_over(model):
            self.end_step()
        self._observing = self.wanted
        first, self.step.forwards = not self.step.forwards, self.step.forwards + 1
        if not self._observing:
            return
        if first:
            self.note_settings()
            if not self.has_optimizer:  # no hook will announce the update
                self.note_parameters()
        if first or any(model is whole for whole in self._models):
            for name, tensor in named_inputs(args, kwargs, self.tensor_class):
                self.note_input(f"input.{name}", tensor)

    def output_watch(self, name: str) -> Callable[[Any], None]:
        """What measures the output of one module."""
        places = [self.series(f"output.{name}.{kind}") for kind in ("norm", "max", "mean")]
        # What float32 leaves out of the norm: the only trace of an error in the last bits.
        self._residues.append((places[0], self.series(f"output.{name}.residue")))
        eps = self.series(f"output.{name}.eps")

        def measure(output: Any) -> None:
            tensor = next(iter(tensors_in(output, self.tensor_class, [])), None)
            precision = None if tensor is None else self.precision(tensor)
            if precision is not None:
                self.step.numbers.append((eps, precision))
                self.note_output(places, tensor)

        return measure

    def saw_loss(self, loss: Any) -> None:
        """A backward pass begins at this tensor."""
        if self.in_backward or not (self.active or self.step.forwards):
            return
        self.step.backward = True
        if self.wanted and isinstance(loss, self.tensor_class) and math.prod(loss.shape) == 1:
            self.note_loss("backward", loss)

    def note_loss(self, seen: str, loss: Any) -> None:
        """A loss of this step. Several, where gradients accumulate, become their mean."""
        self._losses.setdefault(seen, []).append(loss)

    def note_parameters(self) -> None:
        """The parameters that this step's forward has used."""
        self._noted = True
        self.note_norms("parameter", list(self.trained()))

    def _note_buffers(self) -> None:
        """The running statistics that this step's forward has left."""
        held = [(name, getattr(home, attribute, None)) for name, home, attribute in self._buffers]
        tensors = [(name, buffer) for name, buffer in held if isinstance(buffer, self.tensor_class)]
        self.note_norms("buffer", [(name, buffer) for name, buffer in tensors if self.precision(buffer) is not None])

    def begin_update(self, optimizer: Any) -> bool:
        """An optimizer is about to step: whether it holds parameters of the model."""
        if not self.attached or not self.cycle.holds(optimizer):
            return False
        if self.cycle.repeats(optimizer):
            self._noted = False
            self._graded.clear()
            self.end_parts()
        self.has_optimizer = True
        return True

    def note_gradients(self, optimizer: Any, gradients: Iterable[tuple[str, Any]]) -> None:
        """What an update uses: gradients as exchanged between ranks, unscaled and clipped; rates, other settings."""
        fresh = {name: gradient for name, gradient in gradients if name not in self._graded}  # two may hold the same
        self._graded |= fresh.keys()
        self.note_norms("gradient", list(fresh.items()))
        settings = self.settings_of(optimizer)
        if optimizer not in self._first_groups:
            self._first_groups[optimizer] = self._groups
            self._groups += len(settings)
        for group, values in enumerate(settings, self._first_groups[optimizer]):
            for key, value in values.items():
                note = self.note_tensor if isinstance(value, self.tensor_class) else self.note
                note(f"group.{group}.{key}", value)

    def end_update(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        if self.cycle.completes(optimizer):
            self.end_step()
        elif not self.in_backward:  # many may step in one backward pass, which is never cut into two steps
            # Whether this was all of the step shows later.
            self.work(self._hand_over)
            self._parts.append(self.step)
            self.step = Step(self.step.number)

    def _hand_over(self) -> None:
        if self.wanted and not self._noted and self.step.forwards:
            self.note_parameters()
        losses = next(filter(None, map(self._losses.get, ("log", "output", "backward"))), [])
        self._losses = {}
        self.hand_over(losses)

    def end_step(self) -> None:
        """The step is over; that before it is written, since its numbers have arrived by now."""
        if self._buffers and self.wanted and (self.step.forwards or self._parts):
            self.work(self._note_buffers)
        self.work(self._hand_over)
        self._noted = False
        self._graded.clear()
        step, wanted = self.step, self.wanted
        self.step = Step(step.number + 1)
        self._hand_to_writer([*self._parts, step], wanted)

    def end_parts(self) -> None:
        """The parts were the whole step. What was seen after them belongs to the next one."""
        wanted = self.wanted
        self.step.number += 1
        self._hand_to_writer(self._parts, wanted)

    def _hand_to_writer(self, parts: list[Step], wanted: bool) -> None:
        self._write_last()
        step, self._parts = parts[0], []
        for part in parts[1:]:
            step.numbers += part.numbers
            step.pending += part.pending
        if wanted and (step.numbers or step.pending):
            self._last = step

    def _write_last(self) -> None:
        step, self._last = self._last, None
        if step is not None and not self._failed:
            self._guarded("writing a step", self._write, step)

    def _write(self, step: Step) -> None:
        total = self.series("grad_norm")
        arrived = [read() for read in step.pending]
        places = [place for place, _ in step.numbers]
        for series, _ in arrived:
            places += series
        layout = self._layout
        if layout is None or layout.places != places or len(layout.known) != len(self._names):
            layout = self._layout = _Layout(places, self._names, self._gradient_norms, self._residues)
        values = np.concatenate([[value for _, value in step.numbers], *(numbers for _, numbers in arrived)])
        exact = np.zeros(len(self._names))
        exact[layout.index] = values
        for place in layout.repeated:
            exact[place] = _together(self._names[place], values[layout.index == place].tolist())
        row = exact.astype(np.float32)
        row[layout.residues] = exact[layout.norms] - row[layout.norms]
        if len(layout.gradients):
            row[total] = math.sqrt(np.square(exact[layout.gradients]).sum())
        known = layout.known
        row[~known] = MISSING
        if self._stream is None:
            path = self.config.dump_path / f"rank{self.rank() or 0}" / STREAM
            self.problems.folder = path.parent
            self._stream = WatchStream(path, self.config.keep)
        self._stream.append(step.number, self._names, row)
        self._written += 1
        if self._sinks:
            shown = {
                name: float(row[index]) for name, index in self._series.items() if known[index] and _is_shown(name)
            }
            for sink in self._sinks:
                self._guarded("logging", sink.log, shown, step.number)

    def _guarded(self, doing: str, act: Callable[..., Any], *args: Any) -> None:
        """``act(*args)``; its errors are noted, never raised into the training."""
        try:
            act(*args)
        except Exception as error:
            self.problems.note(doing, error)
            if is_disk_error(error):
                self._failed = True
                self.active = False


def _is_shown(name: str) -> bool:
    """Whether loggers get a series: loss, learning rates, norms of outputs, the user's own; not every parameter."""
    kind = name.partition(".")[0]
    return kind not in {"parameter", "buffer", "gradient", "input", "random", "setting", "group", "output"} or (
        (kind == "output" and name.endswith(".norm")) or (kind == "group" and name.endswith(".lr"))
    )


def _together(name: str, values: list[float]) -> float:
    """One number for several calls in a step."""
    kind = name.rpartition(".")[2]
    if kind == "norm":
        return math.sqrt(sum(value * value for value in values))
    if kind == "max":
        return float(np.max(np.abs(values)))  # of smallest and largest values, too; NaN stays NaN
    if kind == "samples":
        return float(sum(int(value) for value in values) % DIGEST)
    if kind == "digest":
        whole = 0
        for value in values:
            whole = (whole * 31 + int(value)) % DIGEST
        return float(whole)
    return sum(values) / len(values) if kind in {"loss", "mean"} else values[0]


class _TensorBoard:
    """Scalars for TensorBoard, through a writer that has ``add_scalar``."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.flush()


def _sink(given: Any, folder: Path) -> Any:
    if given == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingPackage('sinks "tensorboard" needs TensorBoard', hint="pip install tensorboard") from None
        return _TensorBoard(SummaryWriter(str(folder / "tensorboard")))
    if callable(getattr(given, "add_scalar", None)):
        return _TensorBoard(given)
    if callable(getattr(given, "log", None)):
        return SimpleNamespace(log=given.log)  # it is called, but not closed: the user opened it
    raise BadInput(
        f"sinks holds {type(given).__name__}, which is not a logger",
        hint='give "tensorboard", a SummaryWriter, or an object with log(values, step), such as a wandb run',
    )
