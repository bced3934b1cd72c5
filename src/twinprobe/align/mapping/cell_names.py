"""How the lines of a cell mapping file turn a cell's name into a module's."""

from __future__ import annotations

from collections.abc import Collection

from twinprobe.align.mapping.yaml_files import Line

_Span = tuple[int, int, Line]


class CellNames:
    """Applies the lines to names and remembers which of them ever did something.

    A line whose left side is the whole name wins. Otherwise each line replaces its first occurrence in the original
    name: on whole segments where there are such, else inside a word.
    """

    def __init__(self, lines: list[Line], names: Collection[str], known: Collection[str]) -> None:
        self._by_left = {line.left: line for line in lines}
        self._known = known
        whole = set(names)
        # Only strings are looked for inside words: a full name is no part of one.
        self._strings = [line for line in lines if line.left not in whole]
        self.hits: set[Line] = set()
        self.inside: dict[Line, str] = {}

    def rename(self, name: str) -> tuple[str, list[Line]]:
        """The name in the other run's words, and the lines that made it."""
        whole = self._by_left.get(name)
        if whole is not None:
            self.hits.add(whole)
            return whole.right, [whole]
        words = _apart(self._segment_hits(name), [])
        inside = [span for span in self._string_hits(name) if all(span[2] is not word[2] for word in words)]
        both = _apart(inside, words)
        renamed = _apply(name, both)
        # A string that is only part of a word is a guess; it is taken back where the plain reading exists.
        if len(both) > len(words) and renamed not in self._known:
            plain = _apply(name, words)
            if plain in self._known:
                both, renamed = words, plain
        self.hits.update(line for _, _, line in both)
        for span in both:
            if span not in words:
                self.inside.setdefault(span[2], name)
        return renamed, [line for _, _, line in both]

    def _segment_hits(self, name: str) -> list[_Span]:
        """The first place of each line that hits whole segments."""
        starts = [0, *(at + 1 for at, sign in enumerate(name) if sign == ".")]
        ends = [*(start - 1 for start in starts[1:]), len(name)]
        found: dict[str, _Span] = {}
        for first, begin in enumerate(starts):
            for end in ends[first:]:
                line = self._by_left.get(name[begin:end])
                if line is not None and line.left not in found:
                    found[line.left] = (begin, end, line)
        return list(found.values())

    def _string_hits(self, name: str) -> list[_Span]:
        spans = []
        for line in self._strings:
            at = name.find(line.left)
            if at >= 0:
                spans.append((at, at + len(line.left), line))
        return spans


def _apart(spans: list[_Span], kept: list[_Span]) -> list[_Span]:
    """What does not overlap with what is kept already; of two that overlap, the longer one stays."""
    kept = list(kept)
    for span in sorted(spans, key=lambda item: item[0] - item[1]):
        if all(span[1] <= other[0] or other[1] <= span[0] for other in kept):
            kept.append(span)
    return sorted(kept, key=lambda item: item[0])


def _apply(name: str, spans: list[_Span]) -> str:
    for begin, end, line in reversed(spans):
        name = name[:begin] + line.right + name[end:]
    return name
