"""``x + y`` or ``x.add(y)``? PyTorch shows both as Tensor.add; the caller's instruction tells them apart."""

from __future__ import annotations

import dis
from types import CodeType, FrameType

from torch.nn import functional

from twinprobe.record.torch.names import Api, make_api

_SPELLED = {
    "add": "__add__",
    "sub": "__sub__",
    "mul": "__mul__",
    "div": "__truediv__",
    "remainder": "__mod__",
    "matmul": "__matmul__",
    "gt": "__gt__",
    "lt": "__lt__",
    "ge": "__ge__",
    "le": "__le__",
    "ne": "__ne__",
    "eq": "__eq__",
    "neg": "__neg__",
    "add_": "__iadd__",
    "sub_": "__isub__",
    "mul_": "__imul__",
    "div_": "__itruediv__",
    "remainder_": "__imod__",
}
_OPERATORS = frozenset(
    number
    for name, number in dis.opmap.items()
    if name.startswith(("BINARY_", "INPLACE_", "COMPARE_OP", "UNARY_")) and "SUBSCR" not in name
)
_CODES = {"sigmoid": functional.sigmoid.__code__, "tanh": functional.tanh.__code__}


class Spelling:
    """Names an API call as its source wrote it."""

    def __init__(self) -> None:
        self._operator: dict[Api, Api] = {}
        self._is_operator: dict[tuple[int, int], tuple[CodeType, bool]] = {}
        self._functional = {name: make_api("Functional", name) for name in _CODES}

    def __call__(self, api: Api, frame: FrameType) -> Api:
        """The Api under which this call is recorded; ``frame`` is the caller."""
        if api.type != "Tensor":
            return api
        spelled = _SPELLED.get(api.name)
        if spelled is not None:
            return self._as_operator(api, spelled) if self._written_as_operator(frame) else api
        if api.name in self._functional and frame.f_code is _CODES[api.name]:
            return self._functional[api.name]
        return api

    def _as_operator(self, api: Api, spelled: str) -> Api:
        known = self._operator.get(api)
        if known is None:
            known = self._operator[api] = make_api("Tensor", spelled)
        return known

    def _written_as_operator(self, frame: FrameType) -> bool:
        code = frame.f_code
        key = (id(code), frame.f_lasti)  # hashing a code object itself is slow
        known = self._is_operator.get(key)
        if known is None:
            known = self._is_operator[key] = (code, code.co_code[frame.f_lasti] in _OPERATORS)
        return known[1]
