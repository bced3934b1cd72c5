"""Which calls are wanted: scope, list and risk level, told apart by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from twinprobe._record.config import RecordConfig

_CONTAINERS = ("Module.", "Cell.", "Layer.")


class NameFilter:
    """Decides by full name whether a call is recorded, and remembers which list entries ever matched."""

    def __init__(self, config: RecordConfig) -> None:
        self._scope = config.scope
        self._names = config.names
        self._tensors = config.tensor_names
        self._unmatched = set(config.names) | set(config.tensor_names) | set(config.scope or ())
        self._inside_scope = False
        self._seen: dict[str, None] = {}
        self._watching = bool(self._unmatched)
        self.everything = not (config.scope or config.names)
        self.takes_all = not self._watching  # and no name needs a look

    def entering(self, name: str) -> None:
        """A call begins: the first name of the scope opens it."""
        if self._scope and name == self._scope[0]:
            self._inside_scope = True
            self._unmatched.discard(name)

    def leaving(self, name: str) -> None:
        """A call ended: the last name of the scope closes it."""
        if self._scope and name == self._scope[1]:
            self._inside_scope = False
            self._unmatched.discard(name)

    def wants(self, name: str, ancestors: Iterable[str] = ()) -> bool:
        """Whether this call is recorded; ``ancestors`` are the enclosing module calls, innermost first."""
        if self._watching:
            if len(self._seen) < 20_000:
                self._seen[name] = None
            if self._unmatched:
                self._unmatched = {one for one in self._unmatched if one not in name}
        if self.everything:
            return True
        if self._scope:
            return self._inside_scope
        chain = tuple(ancestors)  # walked once per entry of the list
        return any(
            one in name or (one.startswith(_CONTAINERS) and any(one in ancestor for ancestor in chain))
            for one in self._names
        )

    def wants_tensors(self, name: str) -> bool:
        """Whether tensor_list asks for this call's real tensors."""
        return bool(self._tensors) and any(one in name for one in self._tensors)

    def complaints(self) -> list[str]:
        """One sentence per entry of scope, list or tensor_list that never matched, with the nearest names."""
        lines = []
        for one in sorted(self._unmatched):
            near = difflib.get_close_matches(one, self._seen, n=3, cutoff=0.3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            lines.append(f"'{one}' matched no call{hint}")
        return lines
