"""Call stacks: a few integers while the step runs, text once per distinct stack when it is written."""

from __future__ import annotations

import linecache
from types import CodeType, FrameType
from typing import Any

_texts: dict[tuple[int, int], tuple[CodeType, str]] = {}  # hashing a code object itself is slow
_FAILED = "the call stack could not be read"


class Stack:
    """One distinct call stack: its own frames, then those of ``base``."""

    __slots__ = ("base", "frames", "names")

    def __init__(self, frames: list[tuple[CodeType, int]], base: Stack | None) -> None:
        self.frames = frames
        self.base = base
        self.names: list[str] = []


class StackTable:
    """Which calls came from which stack. Frames of files under ``hidden`` are left out."""

    def __init__(self, hidden: tuple[str, ...]) -> None:
        self._hidden = hidden
        self._stacks: dict[tuple[int, ...], Stack] = {}

    def place(self, frame: FrameType | None, base: Stack | None = None, stop: int = 0, *, apart: bool = False) -> Stack:
        """The stack of a frame. The walk ends at the frame with id ``stop`` and goes on with ``base``, its stack.

        ``apart``: what it has as its base is the stack of all frames but the first, which calls inside share.
        """
        places = [id(base)]
        outer = frame
        while outer is not None and id(outer) != stop:
            places += id(outer.f_code), outer.f_lasti  # hashing a code object itself is slow
            outer = outer.f_back
        if outer is None:
            base = None
            places[0] = 0
        if apart:
            places.append(0)
        key = tuple(places)
        stack = self._stacks.get(key)
        if stack is None:
            if apart and frame is not None:
                base, outer = self.place(frame.f_back, base, stop), frame.f_back
            frames = []
            while frame is not None and frame is not outer:
                frames.append((frame.f_code, frame.f_lasti))
                frame = frame.f_back
            stack = self._stacks[key] = Stack(frames, base)
        return stack

    def to_json(self) -> dict[str, Any]:
        """The content of stack.json: running number to [names, frames]."""
        texts: dict[tuple[str, ...], list[str]] = {}
        for stack in list(self._stacks.values()):  # the program may go on meanwhile, and with it this table
            if not stack.names:
                continue
            lines = []
            part: Stack | None = stack
            while part is not None:
                frames = [frame for frame in part.frames if not frame[0].co_filename.startswith(self._hidden)]
                lines += [_frame_text(code, instruction) for code, instruction in frames]
                part = part.base
            texts.setdefault(tuple(lines or [_FAILED]), []).extend(stack.names)
        return {str(number): [names, list(lines)] for number, (lines, names) in enumerate(texts.items())}


def _frame_text(code: CodeType, instruction: int) -> str:
    key = (id(code), instruction)
    cached = _texts.get(key)
    if cached is None:
        line = code.co_firstlineno
        for start, end, number in code.co_lines():
            if start <= instruction < end and number is not None:
                line = number
        source = linecache.getline(code.co_filename, line).strip()
        text = f"File {code.co_filename}, line {line}, in {code.co_name}, \n {source}"
        cached = _texts[key] = (code, text)
    return cached[1]
