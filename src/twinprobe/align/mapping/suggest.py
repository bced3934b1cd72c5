"""'Did you mean': the real name nearest to one that exists nowhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from difflib import SequenceMatcher

# difflib costs some 20 us a pair; the words two names share pick the few that are worth it.
_CANDIDATES = 200
_NEAR = 0.6


class Names:
    """A set of real names that can be asked for the nearest one. The index is built at the first question."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)
        self._by_word: dict[str, list[str]] | None = None

    def nearest(self, name: str) -> str | None:
        """The most similar real name, or None where none is near."""
        best, score = None, _NEAR
        matcher = SequenceMatcher(autojunk=False)
        matcher.set_seq2(name)
        for candidate in self._candidates(name):
            matcher.set_seq1(candidate)
            if matcher.real_quick_ratio() > score and matcher.quick_ratio() > score:
                ratio = matcher.ratio()
                if ratio > score:
                    best, score = candidate, ratio
        return best

    def hint(self, name: str) -> str:
        """``; did you mean 'x'?`` or nothing, to be put after a message."""
        nearest = self.nearest(name)
        return f"; did you mean {nearest!r}?" if nearest and nearest != name else ""

    def _candidates(self, name: str) -> list[str]:
        if len(self._names) <= _CANDIDATES:
            return list(self._names)
        if self._by_word is None:
            self._by_word = defaultdict(list)
            for known in self._names:
                for word in dict.fromkeys(_words(known)):
                    self._by_word[word].append(known)
        lists = sorted((self._by_word[word] for word in dict.fromkeys(_words(name)) if word in self._by_word), key=len)
        found: dict[str, None] = {}
        for names in lists:
            found.update(dict.fromkeys(names[: _CANDIDATES - len(found)]))
            if len(found) >= _CANDIDATES:
                break
        return list(found) or list(self._names)[:_CANDIDATES]


def _words(name: str) -> list[str]:
    return [name, *name.lower().replace("_", ".").split(".")]
