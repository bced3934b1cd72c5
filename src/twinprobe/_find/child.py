"""Inside a program that knows nothing of TwinProbe: seeds where it sets none, and one recording of its steps.

Python imports this before the program begins (a sitecustomize of ours comes first on its path), so it stays light: no
framework is imported that the program does not import itself.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

PLAN = "TWINPROBE_FIND"  # the variable that names the plan: a JSON file

# What Python runs first. It goes on to the environment's own sitecustomize, and never fails.
BOOTSTRAP = """
import os, sys

def _begin():
    import importlib.machinery, importlib.util
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    if importlib.util.find_spec("twinprobe") is None:
        sys.path.append({source!r})  # another environment's Python
    from twinprobe._find.child import begin
    begin()

if os.environ.get({plan!r}):
    _begin()
"""


def begin() -> None:
    """Seed what Python has, and wait for the imports of NumPy and PyTorch."""
    try:
        plan = json.loads(Path(os.environ[PLAN]).read_text(encoding="utf-8"))
        (Path(plan["facts"]) / "python").touch()
        program = Program(plan)
        program.seeds.python()
        sys.meta_path.insert(0, _Imports({"numpy": program.seeds.numpy, "torch": program.attach}))
    except Exception:  # the program itself is not at fault, and goes on
        traceback.print_exc()


class _Imports(MetaPathFinder):
    """Calls a function once a module of this name has been imported."""

    def __init__(self, waiting: dict[str, Callable[[Any], None]]) -> None:
        self._waiting = waiting

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self._waiting:
            return None
        then = self._waiting.pop(name)
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((spec for finder in finders if (spec := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                try:
                    then(module)
                except Exception:
                    traceback.print_exc()

            loader.exec_module = exec_module
        return spec


class Seeds:
    """Random numbers begin with our seed; a seed that the program sets takes its place, and is noted."""

    def __init__(self, seed: int | None) -> None:
        rank = os.environ.get("RANK", "")
        self.seed = None if seed is None else seed + (int(rank) if rank.isdecimal() else 0)
        self._by_program: dict[str, bool] = {}

    def python(self) -> None:
        if self.seed is not None:
            random.seed(self.seed)
        self._listen(random, "python")

    def numpy(self, numpy: Any) -> None:
        if self.seed is not None:
            numpy.random.seed(self.seed)
        self._listen(numpy.random, "numpy")

    def torch(self, torch: Any) -> None:
        if self.seed is not None:
            torch.manual_seed(self.seed)
        self._first = torch.initial_seed()

    def _listen(self, home: Any, name: str) -> None:
        original = home.seed
        self._by_program[name] = False

        @functools.wraps(original)
        def seed(*args: Any, **kwargs: Any) -> Any:
            self._by_program[name] = True
            return original(*args, **kwargs)

        home.seed = seed

    def facts(self, torch: Any) -> dict[str, Any]:
        """Who set each seed: a number is ours, "program" the program itself, None nobody."""
        by_program = self._by_program | {"torch": torch.initial_seed() != self._first}
        return {name: "program" if set_by_program else self.seed for name, set_by_program in by_program.items()}


def _guarded(work: Callable[..., None]) -> Callable[..., None]:
    """A hook whose errors are printed and end the recording, but never the program."""

    @functools.wraps(work)
    def hook(program: Program, *args: Any, **kwargs: Any) -> None:
        if program.closed:
            return
        try:
            work(program, *args, **kwargs)
        except Exception as error:
            traceback.print_exc()
            program.give_up(error)

    return hook


class Program:
    """Finds the model by itself, and records its steps.

    The model is the outermost module called with gradients on (in a program without an optimizer: the outermost module
    with parameters), or the larger module that holds it. A step begins with its first call and ends when the optimizers
    that hold its parameters have made a step. Without one it ends when the model is called again and gradients do not
    accumulate.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._watches = plan["record"]["level"] == "watch"
        self.seeds = Seeds(plan["seed"])
        self._torch: Any = None
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._replaced: list[tuple[Any, str, Any]] = []
        self._handles: list[Any] = []
        self._root: Any = None
        self._model: Any = None
        self._recorder: Any = None
        self._stay: Callable[[], None] = lambda: None
        self._cycle: Any = None
        self._hooked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._went_back = False  # backward() was called in this step
        self._version = -1
        self._swapped: Any = None
        self._facts: dict[str, Any] = {}
        self._name = ""
        self.closed = False

    # -- finding the model ------------------------------------------------------------------------------------------

    def attach(self, torch: Any) -> None:
        """PyTorch has been imported: wait for optimizers and for calls of modules."""
        self._torch = torch
        self.seeds.torch(torch)
        (Path(self._plan["facts"]) / "torch").touch()

        def made(optimizer: Any, *_: Any, **__: Any) -> None:
            self._optimizers.add(optimizer)
            if self._root is not None and not self._facts["training"]:
                self._wait()  # the call so far was no training step

        self._announce(torch.optim.Optimizer, "__init__", made)
        self._wait()

    def _announce(self, home: Any, name: str, listener: Callable[..., None]) -> None:
        """Call the listener when a function is called, before any hook of it runs."""
        original = getattr(home, name)

        @functools.wraps(original)
        def announced(*args: Any, **kwargs: Any) -> Any:
            listener(*args, **kwargs)
            return original(*args, **kwargs)

        self._replaced.append((home, name, original))
        setattr(home, name, announced)

    def _restore(self, *names: str) -> None:
        """Put back what stood where calls are announced."""
        for place in [replaced for replaced in self._replaced if replaced[1] in names]:
            self._replaced.remove(place)
            setattr(*place)

    def _wait(self) -> None:
        if all(name != "__call__" for _, name, _ in self._replaced):
            self._announce(self._torch.nn.Module, "__call__", self._called)

    @_guarded
    def _called(self, module: Any, *_: Any, **__: Any) -> None:
        """Any module is called: is it the one to record?"""
        parameters = list(module.parameters())
        if not parameters or _is_data_worker():
            return
        training = self._torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters)
        if not training and (self._optimizers or self._root is not None):
            return  # an evaluation before the training
        self._restore("__call__")
        if module is self._root:
            self._facts["training"] = True
        else:
            self._choose(module, training)

    def _choose(self, root: Any, training: bool) -> None:
        from twinprobe._record.torch.hooks import UpdateHooks, keep_hooks_out_of_copies
        from twinprobe._record.torch.optimizer import Cycle
        from twinprobe._record.torch.values import rounding_settings

        self._remove_hooks()
        self._root, self._model = root, _holder(root, self._torch.nn.Module)
        self._cycle = Cycle(self._plan["updates"])
        self._cycle.follow(self._model.parameters())
        self._hooked.clear()
        if self._recorder is None:
            self._record()
        elif self._watches:
            self._recorder.detach()
            self._recorder.attach(self._model)
        elif self._recorder.engine.begun:
            self._end()
        # After the watch's own hook, which counts the steps.
        self._handles = [root.register_forward_pre_hook(self._root_called)]
        keep_hooks_out_of_copies(self)
        own = [optimizer for optimizer in self._optimizers if self._cycle.holds(optimizer)]
        self._facts = {
            "model": type(self._model).__name__, "root": type(root).__name__, "training": training,
            "step": "optimizer" if own else "forward", "seeds": self.seeds.facts(self._torch),
            "settings": rounding_settings(), "arguments": sys.argv,
        }  # fmt: skip
        for optimizer in own:
            self._before_update(optimizer)  # at once: with a closure, as Lightning has one, its first step is under way
        self._handles.append(UpdateHooks(self._before_update))
        if self._facts["step"] == "forward":

            def goes_back(*_: Any, **__: Any) -> None:
                self._went_back = True

            self._announce(self._torch.autograd, "backward", goes_back)
        self._write_facts()

    def _record(self) -> None:
        from multiprocessing.util import Finalize

        from twinprobe._record.config import load_config
        from twinprobe._record.torch.recorder import TorchRecorder
        from twinprobe._record.watch import before_exit

        self._recorder = TorchRecorder.of(load_config(**self._plan["record"]))
        if self._watches:
            self._recorder.step.number = self._plan["from_step"]
            self._recorder.start(self._model)  # it counts the steps by itself, in the same way
        else:
            self._recorder.engine.step_number = self._plan["from_step"]
        self._stay = before_exit(self.close)
        Finalize(None, self.close, exitpriority=100)  # processes that multiprocessing started skip atexit

    # -- steps ------------------------------------------------------------------------------------------------------

    @_guarded
    def _root_called(self, *_: Any) -> None:
        if _is_data_worker():
            return
        if self._watches:
            self._swap_back()
            self._stop_after(self._recorder.step.number - 1)
            self._swap()
            return
        engine = self._recorder.engine
        if self._facts["step"] == "forward":
            version = next(self._model.parameters())._version
            accumulates = self._went_back and version == self._version
            self._version = version
            if engine.begun and accumulates:
                return
            if engine.begun:
                self._end()
        elif engine.begun or not self._torch.is_grad_enabled():
            return
        self._went_back = False
        self._recorder.start(self._model)

    @_guarded
    def _before_update(self, optimizer: Any, *_: Any) -> None:
        ours = self._cycle.holds(optimizer)
        if ours:
            self._cycle.repeats(optimizer)
        if optimizer in self._hooked:
            return
        self._hooked.add(optimizer)
        if not ours:
            self._facts["others"] = self._facts.get("others", 0) + 1
            return
        self._facts.setdefault("optimizer", type(optimizer).__name__)
        self._facts |= {"step": "optimizer", "training": True}
        self._handles.append(optimizer.register_step_post_hook(self._updated))

    @_guarded
    def _updated(self, optimizer: Any, *_: Any) -> None:
        if self._watches:
            self._swap_back(ended=True)
            return
        if self._cycle.completes(optimizer) and self._recorder.engine.begun:
            # An optimizer's own hooks come before the recorder's, which go when the step ends.
            self._recorder.optimizer.finish(optimizer)
            self._end()

    def _end(self) -> None:
        self._recorder.stop()
        done = self._recorder.engine.step_number
        self._recorder.next_step()
        self._stop_after(done)

    def _stop_after(self, done: int) -> None:
        last = self._plan["last_step"]
        if last is not None and done >= last and threading.current_thread() is threading.main_thread():
            # As if the program had ended here: nothing of it is killed, and all it has to clean up is cleaned up.
            self._facts["stopped"] = True
            if self._watches:
                self._recorder.has_optimizer = True  # so that the step that has just begun is not counted
            self.close()
            raise SystemExit(0)

    # -- golden's values at one place -------------------------------------------------------------------------------

    def _swap(self) -> None:
        wanted = self._plan["swap"]
        if not wanted or self._swapped is not None or self._recorder.step.number != wanted["step"]:
            return
        from twinprobe._replay.swap import swap

        values = Path(wanted["values"])
        own = values / f"rank{self._recorder.rank()}"
        values = own if own.is_dir() else sorted(values.iterdir())[0]
        self._swapped = swap(self._model, wanted["module"], with_=values)
        self._swapped.__enter__()

    def _swap_back(self, *, ended: bool = False) -> None:
        if self._swapped is not None and (ended or self._recorder.step.number != self._plan["swap"]["step"]):
            self._swapped.__exit__(None, None, None)
            self._swapped = None

    # -- the end ----------------------------------------------------------------------------------------------------

    def give_up(self, error: Exception) -> None:
        """Our own code failed: the program goes on without it, and the facts record the error."""
        self.closed = True
        self._facts["error"] = f"{type(error).__name__}: {error}"
        if self._recorder is not None:
            self._write_facts()

    def close(self) -> None:
        """The program is over."""
        if self.closed:
            return
        self.closed = True
        self._stay()
        self._remove_hooks()
        self._restore("__call__", "__init__")
        engine = self._recorder.engine
        unfinished = engine.begun and not self._watches
        if unfinished:
            self._recorder.stop()
        elif not self._watches:  # a step that ended within a backward pass has left its function mode behind
            self._recorder.mode.detach()
        engine.close()
        # The last step of a program without an optimizer ends with the program.
        ended = engine.step.number if self._watches else engine.step_number
        ended += unfinished and (self._facts["step"] == "forward" or self._cycle.unfinished)
        if self._watches:
            self._facts["updates"] = self._recorder.cycle.lengths
        self._facts["steps"] = ended - self._plan["from_step"]
        self._write_facts()

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._restore("backward")

    def _write_facts(self) -> None:
        if not self._name:  # once: at the end the ranks may be gone
            rank = self._recorder.rank()
            self._name = f"proc{os.getpid()}" if rank is None else f"rank{rank}"
        path = Path(self._plan["facts"]) / f"{self._name}.json"
        with suppress(OSError):
            path.with_suffix(".part").write_text(json.dumps(self._facts, default=str), encoding="utf-8")
            path.with_suffix(".part").replace(path)


def _holder(root: Any, module_class: type) -> Any:
    """The largest module that holds this one: programs may call the parts of their model one by one."""
    holders = [root]
    objects: Iterable[Any] = gc.get_objects()
    for module in objects:
        if issubclass(type(module), module_class) and module is not root:  # isinstance would ask the object itself
            with suppress(Exception):
                if any(inner is root for inner in module.modules()):
                    holders.append(module)
    return max(holders, key=lambda module: sum(1 for _ in module.modules()))


def _is_data_worker() -> bool:
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and bool(multiprocessing.current_process().daemon)
