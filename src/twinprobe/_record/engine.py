"""Steps, ranks, filters and counters: everything about recording that no framework needs to know."""

from __future__ import annotations

import atexit
import gc
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

from twinprobe._record.bench_check import BenchCheck
from twinprobe._record.calls import NameFilter, Stack, StackTable
from twinprobe._record.config import RecordConfig
from twinprobe._record.entries import Entry, Problems, Renderer, logger, notes_of, speak
from twinprobe._record.writer import TENSOR_FOLDER, DumpFolder, Worker, is_disk_error, size_of
from twinprobe._record.writer_process import RemoteFolder, WriterProcess, start_writer_process
from twinprobe._runs.names import LAYERS
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput

# Is there an earlier dump at the place of this one?

_INDEXES = ("dump.json", "debug.json", "dump.json.part", "debug.json.part")


def refuse_earlier_dump(dump_path: Path, own: str) -> None:
    """Raise when ``dump_path`` holds a dump that this run would overwrite or mix with.

    ``own`` is this process's folder name: ``rank<R>``, or ``proc<PID>``, where folders of processes that are gone
    count as an earlier run. Folders of other ranks are this run's own.
    """
    if not dump_path.is_dir():
        return
    for step in sorted(dump_path.glob("step*")):
        for folder in sorted(step.iterdir()) if step.is_dir() else ():
            index = next((name for name in _INDEXES if (folder / name).exists()), "")
            if index and _belongs_to_another_run(folder.name, own):
                unfinished = f" that was not finished ({index})" if index.endswith(".part") else ""
                raise BadInput(
                    f"holds an earlier dump{unfinished}, which is not overwritten",
                    where=folder, hint="give another dump_path",
                )  # fmt: skip


def _belongs_to_another_run(name: str, own: str) -> bool:
    if name == own:
        return True
    process = name.removeprefix("proc")
    if not own.startswith("proc") or process == name or not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)  # asks only whether there is such a process
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


_BATCH = 64
_STEPS_IN_A_ROW, _MANY_ENTRIES = 2, 64  # from here on a writer process is worth starting
_PATIENCE = 10.0  # seconds that an ending process waits for a writer that makes no progress
_SAID = frozenset({1, 2, 3, 10, 100, 1000, 10_000, 100_000})  # progress: these steps get a line


class Framework(ABC):
    """What the engine asks of a framework."""

    name: str
    tensor_suffix: str
    layers: dict[str, dict[str, Any]] = {}  # noqa: RUF012, what the layers were built with, by path; replaced as a whole
    subfolder = ""  # between the dump path and the step folders; empty for the usual layout

    @property
    def deferred(self) -> bool:
        """Whether results are still on a device, so that entries cannot be written before the stretch ends."""
        return False

    def settings(self) -> dict[str, Any]:
        """Settings that change the rounding of this program's results, for the dump's header: plain values by name.
        ``autocast`` is a dtype or None."""
        return {}

    @abstractmethod
    def rank(self) -> int | None:
        """This process's rank, None when not distributed."""

    @abstractmethod
    def save_tensor(self, payload: Any, stream: IO[bytes]) -> None:
        """Write one host copy of a tensor in the framework's own file format."""

    @abstractmethod
    def host(self, payload: Any) -> HostTensor | None:
        """A host copy of a tensor as it is measured; None where its dtype is not supported."""

    @abstractmethod
    def collect(self) -> Callable[[], None] | None:
        """End of a stretch of recording: a job that waits for device results and fills the rows."""

    def finished(self, update: Entry) -> Entry:
        """An optimizer's update, once all of it is measured."""
        return update

    def let_go(self) -> None:  # noqa: B027  most hold nothing
        """This process is a forked child: touch nothing that the parent's threads and devices hold."""


class GarbageCollectorPause:
    """The garbage collector has patience while something is recorded.

    A training step hardly leaves it anything to do. The recorder makes tens of thousands of objects in each, all of
    which go without its help; but by their number they make it look at every object of the program, every few steps,
    for a third of a second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._usual: tuple[int, int, int] | None = None
        self._patient: tuple[int, int, int] | None = None

    def begin(self) -> None:
        """A step begins."""
        with self._lock:
            self._holders += 1
            usual = gc.get_threshold()
            if self._holders == 1 and usual[0]:  # 0: the program has switched it off
                self._usual, self._patient = usual, (usual[0] + _OWN_OBJECTS, *usual[1:])
                gc.set_threshold(*self._patient)

    def end(self) -> None:
        """A step is written."""
        with self._lock:
            self._holders = max(0, self._holders - 1)
            if not self._holders and self._usual is not None:
                if gc.get_threshold() == self._patient:  # otherwise the program has its own idea of it
                    gc.set_threshold(*self._usual)
                self._usual = None

    def let_go(self) -> None:
        """This process is a forked child, which records nothing; the lock may belong to a thread of its parent."""
        self._lock = threading.Lock()
        self._holders = 1
        self.end()


_OWN_OBJECTS = 200_000
collector = GarbageCollectorPause()


class Step:
    """What belongs to one step folder."""

    def __init__(self, number: int, folder: DumpFolder | RemoteFolder, hidden: tuple[str, ...]) -> None:
        self.number = number
        self.folder = folder
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.construct: dict[str, str | None] = {}
        self.stacks = StackTable(hidden)
        self.pending: list[Entry] = []
        self.updates: list[Entry] = []  # of optimizers, for a file of their own
        self.placed: dict[str, Any] = {}  # where pieces of distributed tensors lie, for layout.json
        self.closed = False  # its index has its final name
        self.writable = False  # its index is open
        self.counted = 0  # bytes, when it was last closed

    @property
    def unused(self) -> bool:
        """Whether nothing has been recorded."""
        return not (self.closed or self.writable or self.counters)


class Engine:
    """One recording: begins, ends, moves to the next step, and hands entries to the writer thread."""

    def __init__(self, config: RecordConfig, framework: Framework, *, hidden: tuple[str, ...] = ()) -> None:
        speak()
        self.config = config
        self.framework = framework
        self.filter = NameFilter(config)
        self.problems = Problems()
        self.step_number = 0
        self.step: Step | None = None
        self.active = False
        self.failed = False
        self.begun = False
        self.bench: BenchCheck | None = None
        self.places: Any = None  # collects the content of layout.json, where there are several ranks
        self._checked = False
        self._finished = False
        self._hidden = (str(Path(__file__).parent) + os.sep, *hidden)
        self._worker = Worker(lambda error: self.problems.note("writing", error))
        self._renderer = Renderer(summary_mode=config.summary_mode, precision=config.precision)
        self._structure = config.task == "structure"
        self._process: WriterProcess | None = None
        self._leaves = False  # folders are written by that process
        self._trees = config.level in {"L0", "mix"}
        self._keeps_tensors = config.task == "tensor" or bool(config.tensor_names)
        self._copies = self._keeps_tensors or config.summaries  # values go to the writer
        self._may_leave = type(self) is Engine and config.level != "debug" and not self._copies
        self._total = [0, 0]
        self._closed = 0
        self._opening = threading.Lock()
        self._closing = 0  # the writer's number for the end of the last step
        self._patient = False  # the garbage collector is, because of this recording
        self.forked = self._said_forked = False
        atexit.register(self.close)
        _engines.add(self)
        _watch_exit()

    # -- the verbs --------------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Start recording this step; False when the step or the rank is not wanted or recording is switched off."""
        if self.begun:
            raise BadInput("recording is already started", hint="call stop() before start()")
        self.begun = True
        if self.forked and not self._said_forked:
            self._said_forked = True
            logger.warning("a forked process cannot use its parent's recorder; make a new one in the child")
        self.active = not self.failed and self._wanted_now()
        if self.active:
            try:
                self._open_step()
                collector.begin()
                self._patient = True
            except BadInput:
                self.begun = self.active = False
                raise
            except Exception as error:
                self.active = False
                self._give_up(self.config.dump_path, error)
        return self.active

    def end(self) -> None:
        """Stop recording; the step's files are closed, and opened again if the same step is started again."""
        if not self.begun:
            raise BadInput("recording is not started", hint="call start() before stop()")
        self.begun = False
        self.active = False
        step = self.step
        if step is not None and not step.closed:
            try:
                self._close_step(step)
            except Exception as error:
                self._give_up(step.folder.path, error)
        if self._patient:
            self._patient = False
            self._worker.put(collector.end)  # when the step's objects are gone

    def next_step(self) -> None:
        """Everything recorded from here on belongs to the next step."""
        if self.begun:
            self.end()
        self.step = None
        self.step_number += 1

    def drop_unused_step(self) -> None:
        """A step in which nothing was recorded is not counted."""
        if self.step_number and self.step is not None and self.step.unused:
            self.step = None

    def flush(self) -> None:
        """Wait until everything recorded so far is in files; with async_dump, all but the open step."""
        step = self.step
        if step is not None and step.writable and not self.config.async_dump:
            self._collect(step)
            self._hand_over(step)
        self._worker.drain()

    def flush_before_exit(self) -> None:
        """The process is about to end, whatever state it is in: write everything that needs no device."""
        with suppress(Exception):
            step = self.step
            if step is not None and step.writable and not (self.framework.deferred or self.config.async_dump):
                self._hand_over(step)
            self._worker.drain(_PATIENCE)

    def close(self) -> None:
        """End of the recording: write what is left and log where it is."""
        if self._finished:
            return
        self._finished = True
        if self.begun:
            self.end()
        self._worker.drain()
        if self._process is not None:
            self._stop_process()
        atexit.unregister(self.close)
        _engines.discard(self)
        _watch_exit()
        for complaint in self.filter.complaints() if self._total[0] or self.filter.everything is False else ():
            logger.warning("%s", complaint)
        if self.bench is not None and self._total[0]:
            logger.info("%s", self.bench.summary())
        if self._total[0] and not self.failed:
            logger.info(
                "recorded %d entries, %s, in %s", self._total[0], _readable(self._total[1]), self.config.dump_path
            )
        elif self.failed:
            logger.warning(
                "recording stopped early: %d steps in %s are complete, and the next one is partly in its .part file",
                self._closed, self.config.dump_path,
            )  # fmt: skip

    # -- what adapters call while a step runs -----------------------------------------------------------------------

    def link(self, child: str, parent: str | None) -> None:
        """Note the enclosing call, for construct.json."""
        if self._trees and self.step is not None:
            self.step.construct[child] = parent

    def stack(
        self, name: str, frame: FrameType | None, base: Stack | None = None, stop: int = 0, *, apart: bool = False
    ) -> Stack | None:
        """Where a call came from, noted under ``name`` for stack.json; None when no stacks are wanted."""
        if not self.config.extra_info or self.step is None:
            return None
        stack = self.step.stacks.place(frame, base, stop, apart=apart)
        stack.names.append(name)
        return stack

    def count(self, key: str) -> int:
        """The running number of this key within the step, from 0."""
        assert self.step is not None
        number = self.step.counters[key]
        self.step.counters[key] = number + 1
        return number

    def wants(self, name: str, ancestors: Iterable[str] = ()) -> bool:
        """Whether scope and list ask for this call."""
        return self.active and self.filter.wants(name, ancestors)

    def emit(self, entry: Entry) -> None:
        """Take over a finished entry."""
        step = self.step
        if step is None or self._structure or self.failed:
            return
        if not step.writable:
            self._open_folder(step)
        if self.bench is not None:
            self.bench.check(entry)
        pending = step.pending
        pending.append(entry)
        waits = self.config.async_dump
        if self._copies and not waits:
            rows = [note.row for note, _ in notes_of(entry) if note.save and note.row is not None]
            size = sum(size_of(row.payload) for row in rows)
            if size:
                self._worker.put(lambda: self._guarded(step, lambda: self._save_tensors(step, entry)), size)
        if not len(pending) % _BATCH and not (waits or self.framework.deferred):
            self._hand_over(step)

    def note_update(self, entry: Entry) -> None:
        """Take over an optimizer's update of one parameter."""
        step = self.step
        if step is not None and not self._structure and not self.failed:
            if not step.writable:
                self._open_folder(step)
            step.updates.append(entry)

    # -- the writer's side ------------------------------------------------------------------------------------------

    def _hand_over(self, step: Step) -> None:
        batch, step.pending = step.pending, []
        self._worker.put(lambda: self._guarded(step, lambda: self._write(step, batch)))

    def _write(self, step: Step, batch: list[Entry]) -> None:
        if self._copies:
            for entry in batch:
                self._save_tensors(step, entry)
                step.folder.add_entries([entry], self._renderer)
        else:
            step.folder.add_entries(batch, self._renderer)
        for entry in batch if self.places is not None else ():
            self.places.add(entry, step.placed)
        step.folder.flush()

    def _save_tensors(self, step: Step, entry: Entry) -> None:
        suffix = self.framework.tensor_suffix
        folder = step.folder
        assert isinstance(folder, DumpFolder)
        for note, name in notes_of(entry):
            row = note.row
            if not note.save or note.file is not None or row is None:
                continue
            if self.config.summaries:
                folder.add_summary(name, row, self.framework.host)
            if not self._keeps_tensors:
                note.save, row.payload = False, None
                continue
            if row.file is not None:
                note.file = folder.same_tensor(name, suffix, row.file)
            elif row.payload is not None:
                note.file = row.file = folder.tensor(name, suffix, row.payload, self.framework.save_tensor)
                row.payload = None

    def _close_step(self, step: Step) -> None:
        step.closed, step.writable = True, False
        self._collect(step)
        self._hand_over(step)
        before = self._closing
        self._closing = self._worker.put(lambda: self._guarded(step, lambda: self._close_folder(step)))
        self._worker.wait(before)  # a killed process loses no step but the last

    def _collect(self, step: Step) -> None:
        try:
            job = self.framework.collect()
        except Exception as error:
            self.problems.note("collecting what a device has measured", error)
            return
        if job is not None:
            self._worker.put(lambda: self._guarded(step, job))

    def _close_folder(self, step: Step) -> None:
        side: dict[str, Any] = {}
        if self.config.extra_info and self.config.level != "debug":
            side = {"stack": step.stacks.to_json(), "construct": step.construct}
        if step.updates:
            self._write_updates(step)
        if self.places is not None and (layout := self.places.document(step.placed)):
            side["layout"] = layout
        entries = step.folder.entries
        step.folder.close(side)
        self._total[0] += entries
        self._total[1] += step.folder.bytes_written - step.counted
        step.counted = step.folder.bytes_written
        self._closed += 1
        if self._closed in _SAID:
            logger.info("step %d: %d entries in %s", step.number, entries, step.folder.path)
        if self._process is not None:
            self._leaves = self._process.ready
        elif self._may_leave and self._closed >= _STEPS_IN_A_ROW and entries >= _MANY_ENTRIES:
            self._may_leave = False  # once is enough
            self._process = start_writer_process(self.problems.note)

    def _write_updates(self, step: Step) -> None:
        """optimizer.json, in the grammar of dump.json: statistics, whatever else the task keeps."""
        path, header = step.folder.path, step.folder.header | {"task": "statistics"}
        header["settings"] = {key: value for key, value in header.get("settings", {}).items() if key != LAYERS}
        folder: DumpFolder | RemoteFolder = DumpFolder(path, header, index="optimizer")
        if isinstance(step.folder, RemoteFolder) and self._process is not None and not self._process.gone:
            folder = RemoteFolder(self._process, path, header, "optimizer", self._renderer, sketches=False)
        (path / "optimizer.json").unlink(missing_ok=True)  # of this step's first stretch, which is written again below
        updates = [self.framework.finished(entry) for entry in step.updates]
        folder.add_entries(updates, self._renderer)
        for entry in updates if self.places is not None else ():
            self.places.add(entry, step.placed)
        folder.close({})

    def _guarded(self, step: Step, job: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            job()
        except Exception as error:
            self._give_up(step.folder.path, error)
            if self.failed:
                step.folder.abandon()

    def _give_up(self, path: Path, error: Exception) -> None:
        """A disk error ends the recording, any other only what was being done."""
        if not is_disk_error(error):
            self.problems.note("writing", error)
            return
        self.failed = True
        self.active = False
        logger.error("cannot write %s (%s); recording stops, the program continues", path, error)

    # -- steps and folders ------------------------------------------------------------------------------------------

    def _wanted_now(self) -> bool:
        config = self.config
        if config.steps is not None and self.step_number not in config.steps:
            return False
        rank = self.framework.rank()
        if config.ranks is not None and rank is not None and rank not in config.ranks:
            return False
        return config.enabled_now()

    def _open_step(self) -> None:
        if self.step is not None:
            return
        rank = self.framework.rank()
        own = f"rank{rank}" if rank is not None else f"proc{os.getpid()}"
        base = self.config.dump_path
        between = self.framework.subfolder
        if between:  # MindSpore beside compiled cells: its layout has a folder of its own, and one process is "rank"
            base, own = base / between, f"rank{rank}" if rank is not None else "rank"
        if not self._checked:
            refuse_earlier_dump(base, own)
            self._checked = True
        if self.bench is not None:
            self.bench.open_step(self.step_number, own)
        path = base / f"step{self.step_number}" / own
        header = {
            "task": self.config.task,
            "level": self.config.level,
            "framework": self.framework.name,
            "dump_data_dir": str((path / TENSOR_FOLDER).absolute()) if self._keeps_tensors else None,
        }
        index = "debug" if self.config.level == "debug" else "dump"
        folder: DumpFolder | RemoteFolder = DumpFolder(path, header, index=index, sketches=self.config.sketches)
        if self._leaves and self._process is not None and not self._process.gone:
            folder = RemoteFolder(self._process, path, header, index, self._renderer, sketches=self.config.sketches)
        self.problems.folder = path
        self.step = Step(self.step_number, folder, self._hidden)

    def _open_folder(self, step: Step) -> None:
        """The step's first entry, or the first one since it was closed. Before, it has no folder."""
        with self._opening:  # gradients may come on several threads
            if step.writable:
                return
            if not step.closed:  # now, not when the step began: the first call may be the first under autocast
                settings: dict[str, Any] = {} if self.config.perturb is None else {"perturb": self.config.perturb}
                try:
                    settings = self.framework.settings() | settings
                except Exception as error:
                    self.problems.note("asking for the precision settings", error)
                layers = {LAYERS: self.framework.layers} if self.framework.layers else {}
                step.folder.header["settings"] = settings | layers
            opens = step.folder.reopen if step.closed else step.folder.open
            self._worker.put(lambda: self._guarded(step, opens))
            step.closed, step.writable = False, True

    def _stop_process(self) -> None:
        process, self._process, self._leaves = self._process, None, False
        if process is not None:
            process.stop()

    def forget_after_fork(self) -> None:
        """A forked data loader must neither record nor write: the writer thread stayed in the parent."""
        self.active = False
        self.failed = self.forked = self._finished = True
        self._stop_process()
        self.step = None
        self.problems = Problems()  # the other one may be locked for good
        self.framework.let_go()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_exit = os._exit


def _forget_after_fork() -> None:
    collector.let_go()
    for engine in list(_engines):
        engine.forget_after_fork()


def _exit_after_writing(status: int) -> None:
    """os._exit, which runs no cleanup handlers: multiprocessing ends its forked children with it, and programs do that
    have no other way past threads that never end."""
    for engine in list(_engines):
        engine.flush_before_exit()
    _exit(status)


def _watch_exit() -> None:
    """Stand before os._exit as long as something is being recorded."""
    if _engines and os._exit is _exit:
        os._exit = _exit_after_writing  # type: ignore[assignment]
    elif not _engines and os._exit is _exit_after_writing:
        os._exit = _exit


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def _readable(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
