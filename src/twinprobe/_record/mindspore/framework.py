"""MindSpore as the recorder sees it: its tensors as notes, its functions and what they are called in a dump."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Hashable, Iterator
from importlib import import_module
from typing import Any, ClassVar

import mindspore as ms
import numpy as np
from mindspore import ops
from numpy.typing import NDArray

from twinprobe._record.calls import CORE, CORE_NAMES, FOCUS, IMPURE_NAMES, NEVER_NAMES, Api, Site, words
from twinprobe._record.eager.apis import Replaced, calling, functions_of, writing
from twinprobe._record.eager.host_rows import ProgramFault, RowCache
from twinprobe._record.entries import Note, Row, logger
from twinprobe._runs.dtypes import STORAGE

# MindSpore's tensors as notes. Reading one waits for the operations before it, and reports their errors.

_asnumpy = ms.Tensor.asnumpy  # held here, because the methods on the class are replaced while a program is recorded
_data_ptr = getattr(ms.Tensor, "data_ptr", None)
_COUNTS = hasattr(ms.Tensor, "_version")
_dtypes: dict[Any, tuple[str, str]] = {}


def dtype_names(tensor: Any) -> tuple[str, str]:
    """``Float32`` as a dump writes it and ``float32`` as the kernels call it."""
    dtype = tensor.dtype
    names = _dtypes.get(dtype)
    if names is None:
        names = _dtypes[dtype] = (str(dtype), str(dtype).lower())
    return names


class Reading:
    """Reading a tensor, even its dtype, waits for the operation that makes it: an error here is the program's."""

    __slots__ = ()
    _said: ClassVar[bool] = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception):
            return
        if not Reading._said:
            Reading._said = True
            logger.warning(
                "MindSpore reports an error of an operation that ran before this point (%s). It is the program's, not "
                "the recorder's: kernels run asynchronously. mindspore.runtime.launch_blocking() shows where",
                str(error).strip().partition("\n")[0],
            )
        raise ProgramFault(error) from error


class MindSporeTensors(RowCache):
    """Notes tensors. One that is as it was gets the same row again, unless it is a parameter."""

    def note(self, tensor: Any, *, save: bool) -> Note:
        """Note one tensor as it is now."""
        with Reading():
            shown, name = dtype_names(tensor)
            shape = tuple(tensor.shape)
            # What MindSpore itself knows of writes: it counts some, and an exchange of the memory shows in the address.
            stamp = (tensor._version if _COUNTS else 0, _data_ptr(tensor) if _data_ptr is not None else 0)
        row = self.row_of(tensor, tensor, name, stamp, save) if name in STORAGE else None
        return Note("mindspore.Tensor", shown, shape, row, None, save)

    def keep(self, tensor: Any, stamp: Hashable, row: Row) -> None:
        if not isinstance(tensor, ms.Parameter):
            super().keep(tensor, stamp, row)

    def read(self, content: Any, name: str) -> NDArray[Any]:
        with Reading():
            array: NDArray[Any] = _asnumpy(content)
        return array if array.dtype == np.dtype(STORAGE[name]) else array.view(STORAGE[name])


def memory_of(tensor: Any) -> tuple[int, tuple[int, ...]]:
    """The address and the strides, in elements, of a tensor that has been computed."""
    with Reading():
        _asnumpy(tensor)  # waits
        return int(tensor.data_ptr()), tuple(tensor.stride())


# Names that moved between MindSpore versions, found once.


def first_of(*places: str) -> Any:
    """The first of these ``module:name`` that exists; None if none does."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            value = getattr(import_module(module), name, None)
        except ImportError:
            continue
        if value is not None:
            return value
    return None


executor = first_of("mindspore.graph.api:_pynative_executor", "mindspore.common.api:_pynative_executor")
JitExecutor = first_of(
    "mindspore.graph.api:_JitExecutor",
    "mindspore.common.api:_JitExecutor",
    "mindspore.common.api:_MindsporeFunctionExecutor",
)
GraphExecutor = first_of("mindspore.graph.api:_CellGraphExecutor", "mindspore.common.api:_CellGraphExecutor")


# Functions: where they are found, what they are called in a dump, how much they matter.

_HOMES = (
    "mindspore.ops.function", "mindspore.ops.auto_generate", "mindspore.ops.operations.manually_defined",
    "mindspore.ops.composite.math_ops", "mindspore.ops.primitive", "mindspore.mint", "mindspore.graph",
    "mindspore.communication",
)  # fmt: skip
_CORE = CORE_NAMES | words("dense MatMul BatchMatMul Conv2D LayerNorm BatchNorm Gather BiasAdd flash_attention_score")
_NEVER = (NEVER_NAMES - {"equal", "allclose"}) | words(
    """
    grad value_and_grad get_grad derivative jacfwd jacrev jet jvp vjp linearize vmap constexpr prim_attr_register
    prim_arg_register op_info_register kernel get_vm_impl_fn add_flags is_tensor size rank dtype print_ asnumpy
    register_hook remove_hook hooks data_sync flush_from_cache init_data getitem_index_info setitem_index_info
    convert_bytes_to_tensor get_bytes set_const_arg set_dtype set_cast_dtype set_init_flag set_param_info
    set_device_address offload is_init is_meta is_shared is_persistent_data value ndimension tolist from_numpy item
    symbolic_shape wait_pipeline strides stride storage numel nelement is_contiguous is_pinned assign_value_cpp
    astype custom_info_register shape_ reshard get_grad stop_gradient_ TBERegOp DataType csr_to_coo
    """
)
_SLOTS = words(
    """
    __add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __pow__ __matmul__ __radd__ __rsub__ __rmul__ __rtruediv__
    __rpow__ __rmatmul__ __rmod__ __rfloordiv__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __neg__ __abs__ __and__ __or__
    __xor__ __invert__ __getitem__ __setitem__ __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__
    """
)
_WRITING = IMPURE_NAMES | words("__setitem__ inplace_update set_data itemset Custom EmbeddingLookup")
_COLLECTIVE_MODULES = (
    ("Distributed", "mindspore.communication.comm_func"),
    ("MintDistributed", "mindspore.mint.distributed"),
)
_COLLECTIVES = words(
    """
    all_reduce all_gather all_gather_into_tensor all_gather_into_tensor_uneven all_to_all all_to_all_single
    all_to_all_single_with_output_shape all_to_all_with_output_shape all_to_all_v_c broadcast gather gather_into_tensor
    reduce reduce_scatter reduce_scatter_tensor reduce_scatter_tensor_uneven scatter scatter_tensor send recv isend
    irecv batch_isend_irecv
    """
)


def make_api(kind: str, name: str) -> Api:
    """An Api by type and name. As in older dumps, shape-only calls are recorded too: only CORE is a rank apart."""
    bare = name.rpartition(".")[2]
    rank = CORE if bare in _CORE or "istributed" in kind else FOCUS
    given = kind == "MintDistributed"  # these write to their arguments
    return Api(f"{kind}.{name}.", rank, given or writes_in_place(bare), given)


def writes_in_place(bare: str) -> bool:
    """Whether a function may change an argument: ``add_``, ``__iadd__``, ``assign``."""
    if bare in _WRITING or bare.startswith(("assign", "Assign", "scatter_", "Scatter", "Inplace", "Apply", "Fused")):
        return True
    return (bare.endswith("_") and not bare.endswith("__")) or (bare.startswith("__i") and bare != "__invert__")


def function_sites() -> Iterator[Site]:
    """Functions of mindspore.ops, mint and communication, and methods of Tensor."""
    yield from _functions("Functional", ops)
    mint = getattr(ms, "mint", None)
    if mint is not None:
        yield from _functions("Mint", mint)
        yield from _functions("MintFunctional", mint.nn.functional)
    yield from _methods()
    for kind, place in _COLLECTIVE_MODULES:
        try:
            module = import_module(place)
        except ImportError:
            continue
        yield from functions_of(module, _COLLECTIVES, functools.partial(make_api, kind))


@functools.cache
def writing_sites() -> tuple[Site, ...]:
    """Everything among these that writes, and the methods that are never recorded but write."""
    recorded = [site for site in function_sites() if site.api.in_place]
    names = {site.attribute for site in recorded if site.owner is ms.Tensor}
    unrecorded = [name for name in dir(ms.Tensor) if name not in names and writes_in_place(name) and name[0] != "_"]
    methods = [(name, inspect.getattr_static(ms.Tensor, name)) for name in unrecorded if name != "requires_grad_"]
    plain = [(name, method) for name, method in methods if callable(method) and not isinstance(method, staticmethod)]
    return (*recorded, *(Site(ms.Tensor, name, method, make_api("Tensor", name)) for name, method in plain))


def _functions(kind: str, space: Any) -> Iterator[Site]:
    return functions_of(space, vars(space).keys() - _NEVER, functools.partial(make_api, kind), _HOMES)


def _methods() -> Iterator[Site]:
    owner = ms.Tensor
    for name in dir(owner):
        if (name.startswith("_") and name not in _SLOTS) or name in _NEVER:
            continue
        function = inspect.getattr_static(owner, name)
        if isinstance(function, staticmethod | classmethod):
            continue
        if inspect.isfunction(function) or inspect.ismethoddescriptor(function):
            yield Site(owner, name, function, make_api("Tensor", name))


class PrimitiveSites:
    """Primitives are recorded where a cell keeps them as an attribute, which gives them their name."""

    def __init__(self) -> None:
        self._apis: dict[int, tuple[Any, Api]] = {}

    def learn(self, models: list[Any]) -> set[type]:
        """Note the primitives of all cells; returns their classes."""
        for model in models:
            for _, cell in model.cells_and_names():
                for name, value in vars(cell).items():
                    if isinstance(value, ops.Primitive) and id(value) not in self._apis:
                        kind = type(value).__name__
                        rank = CORE if kind in _CORE else FOCUS
                        self._apis[id(value)] = (value, Api(f"Primitive.{name}.{kind}.", rank, writes_in_place(kind)))
        return {type(primitive) for primitive, _ in self._apis.values()}

    def replaced(self, models: list[Any], recorder: Any) -> Iterator[Any]:
        """Replace ``__call__`` of each class; yields handles with remove()."""
        for kind in self.learn(models) | _writing_primitives(len(sys.modules)):
            yield Replaced(
                kind, "__call__", functools.partial(self._recorded, recorder, writes_in_place(kind.__name__))
            )

    def _recorded(self, recorder: Any, writes: bool, call: Any) -> Any:
        original = writing(recorder.row_cache)(call) if writes else call

        def called(_original: Any, primitive: Any, args: Any, kwargs: Any) -> Any:
            kept = self._apis.get(id(primitive))
            if kept is None or recorder.busy or recorder.in_api or not recorder.listening():
                return original(primitive, *args, **kwargs)
            return recorder.apis.record(kept[1], original, (primitive, *args), kwargs, sys._getframe(2), skip=1)

        return calling(called)(call)


@functools.lru_cache(maxsize=1)
def _writing_primitives(_imported: int) -> set[type]:
    """The classes of primitives that change an argument, wherever a program keeps one, of so many imported modules."""
    classes, waiting = set(), [ops.Primitive]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if writes_in_place(kind.__name__):
            classes.add(kind)
    return classes
