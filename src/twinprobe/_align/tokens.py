"""Which token of one run is which token of the other, however their sequences are cut (token_cuts.py)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.token_cuts import NONE, Cut, Ints, TokenSequence


@dataclass
class TokenPairs:
    """Tokens that both runs hold, in the golden run's order: places (pass, row, column) on either side."""

    target: Cut
    golden: Cut
    places: tuple[Ints, Ints]
    """For each side an array [tokens, 3]."""
    sequence: Ints
    index: Ints
    """The token's number in its golden sequence."""
    ids: Ints
    positions: tuple[Ints, Ints]
    how: str
    notes: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many tokens were aligned."""
        return len(self.index)

    @property
    def same_cut(self) -> bool:
        """Whether both sides hold the same tokens at the same places, so that nothing needs to be gathered."""
        return self.target.shapes == self.golden.shapes and bool(np.array_equal(*self.places))

    def only(self, sequence: int) -> TokenPairs:
        """The tokens of one sequence alone."""
        own = self.sequence == sequence
        return replace(
            self, places=(self.places[0][own], self.places[1][own]), sequence=self.sequence[own], index=self.index[own],
            ids=self.ids[own], positions=(self.positions[0][own], self.positions[1][own]),
        )  # fmt: skip

    def words(self) -> str:
        """``golden one forward call [1, 12] = target prefill [1, 8] + 4 decode calls; 12 tokens aligned by ids``."""
        many = len(set(self.sequence.tolist()))
        of = f" of {many} sequences" if many > 1 else ""
        tokens = "1 token" if self.count == 1 else f"{self.count:,} tokens"
        return f"golden {self.golden.words()} = target {self.target.words()}; {tokens}{of} aligned by {self.how}"

    def describe(self, differ: NDArray[np.bool_]) -> str:
        """Which tokens these are, in words: ``differs from token 12 on``."""
        count = int(differ.sum())
        several = len(set(self.sequence.tolist())) > 1
        if not count or count == self.count:
            return f"all {self.count:,} tokens differ" if count else ""
        parts = []
        for number in dict.fromkeys(self.sequence[differ].tolist()):
            own = np.flatnonzero(self.sequence == number)
            touched = own[differ[own]]
            on = len(own) - len(touched) <= np.flatnonzero(differ[own])[0] and len(touched) > 1
            parts.append((number, self.index[touched].tolist(), bool(on), len(touched) == len(own)))
        if all(on for *_, on, _ in parts) and len({tokens[0] for _, tokens, *_ in parts}) == 1:
            start = parts[0][1][0]
            where = self._sequences([number for number, *_ in parts])
            what = f"differs from token {start} on{where}" if start else f"differs{where or ' everywhere'}"
        elif all(whole for *_, whole in parts):
            what = f"differs{self._sequences([number for number, *_ in parts])}"
        elif count <= 4:
            named = [
                f"{index}" + (f" of sequence {number}" if several else "")
                for number, indices, *_ in parts
                for index in indices
            ]
            what = f"only token{'s' if count > 1 else ''} {', '.join(named)} differ{'' if count > 1 else 's'}"
        else:
            number, indices, *_ = parts[0]
            of = f" of sequence {number}" if several else ""
            what = f"{count:,} of {self.count:,} tokens differ, token {indices[0]}{of} first"
        return what + self._group(differ)

    def _sequences(self, numbers: Sequence[int]) -> str:
        every = len(set(self.sequence.tolist()))
        if len(numbers) == every:
            return " in all sequences" if every > 1 else ""
        named = ", ".join(map(str, numbers[:6])) + (f" and {len(numbers) - 6} more" if len(numbers) > 6 else "")
        return f" in sequence{'s' if len(numbers) > 1 else ''} {named}"

    def _group(self, differ: NDArray[np.bool_]) -> str:
        """What tokens that differ have in common, and no other token has."""
        for name, side, places in zip(("target", "golden"), (self.target, self.golden), self.places, strict=True):
            number, row, _ = places.T
            later = np.array([bool(one.past.any()) for one in side.passes])[number]
            if later.any() and np.array_equal(differ, later):
                single = all(one.shape[1] == 1 for one in side.passes if one.past.any())
                return f" (just the tokens of the {name}'s {'decode calls' if single else 'later calls'})"
            padded = np.array([not side.passes[at].valid.reshape(side.passes[at].shape)[line].all()
                               for at, line in zip(number.tolist(), row.tolist(), strict=True)])  # fmt: skip
            if padded.any() and not padded.all() and not (differ & ~padded).any():
                return f" (only in sequences that the {name} pads)"
        return ""


def align_tokens(target: Cut, golden: Cut) -> TokenPairs | None:
    """Pair the tokens of two sides; None where they have none in common."""
    links: list[tuple[int, int, int, int, int]] = []  # golden sequence, target sequence, both starts, length
    free = [set(range(len(side.sequences))) for side in (target, golden)]
    exact: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, tokens in enumerate(target.sequences):
        exact[tuple(tokens.ids)].append(number)
    for number, tokens in enumerate(golden.sequences):
        same = exact.get(tuple(tokens.ids))
        if same:
            partner = same.pop(0)
            links.append((number, partner, 0, 0, len(tokens.ids)))
            free[0].discard(partner)
            free[1].discard(number)
    if len(free[0]) * len(free[1]) <= 1 << 14:
        scored = []
        for mine in free[0]:
            for theirs in free[1]:
                start = _overlap(target.sequences[mine], golden.sequences[theirs])
                if start is not None:
                    scored.append((start[2], -theirs, -mine, start))
        for _, theirs, mine, (to, at, length) in sorted(scored, reverse=True):
            # A sequence that was cut by other positions may come in several parts.
            if -mine in free[0]:
                links.append((-theirs, -mine, at, to, length))
                free[0].discard(-mine)
    links.sort()
    if not links:
        return None
    rows: list[list[Any]] = [[] for _ in range(7)]
    for g_number, t_number, at, to, length in links:
        one, other = target.sequences[t_number], golden.sequences[g_number]
        span, back = slice(to, to + length), slice(at, at + length)
        found: tuple[Iterable[Any], ...] = (
            one.places[span], other.places[back], [g_number] * length, range(at, at + length), other.ids[back],
            one.positions[span], other.positions[back],
        )  # fmt: skip
        for values, new in zip(rows, found, strict=True):
            values.extend(new)
    places = tuple(np.array(values, dtype=np.int64).reshape(-1, 3) for values in rows[:2])
    sequence, index, ids, t_positions, g_positions = (np.array(values, dtype=np.int64) for values in rows[2:])
    known = (t_positions != NONE) & (g_positions != NONE)
    by_content = target.by_content or golden.by_content
    agree = bool(known.any()) and bool((t_positions == g_positions)[known].all())
    how = "content" if by_content else "ids"
    pairs = TokenPairs(
        target, golden, (places[0], places[1]), sequence, index, ids, (t_positions, g_positions),
        f"{how} and positions" if agree else how,
    )  # fmt: skip
    pairs.notes = list(_notes(pairs, known, links))
    return pairs


def _overlap(one: TokenSequence, other: TokenSequence) -> tuple[int, int, int] | None:
    """Where two sequences hold the same ids: both starts and how many; None where too few to be sure."""
    shorter, longer = (one, other) if len(one.ids) <= len(other.ids) else (other, one)
    needle, ids = np.array(shorter.ids), np.array(longer.ids)
    best = (0, 0, 0)
    shift = one.positions[0] - other.positions[0] if NONE not in (one.positions[0], other.positions[0]) else 0
    starts = {(0, 0), (max(-shift, 0), max(shift, 0))}
    inside = np.flatnonzero(ids[: len(ids) - len(needle) + 1] == needle[0])[:64]
    for place in inside.tolist():
        starts.add((0, place) if shorter is one else (place, 0))
    # Padding that no mask tells of: the same id again and again before the first token of the other.
    lead = np.flatnonzero(needle == ids[0])[:64]
    starts |= {(place, 0) if shorter is one else (0, place) for place in lead.tolist()}
    for to, at in starts:
        room = min(len(one.ids) - to, len(other.ids) - at)
        same = np.array(one.ids[to : to + room]) == np.array(other.ids[at : at + room])
        length = room if same.all() else int(np.argmin(same))
        best = max(best, (length, -to, -at))
    length, to, at = best[0], -best[1], -best[2]
    enough = length >= min(len(one.ids), len(other.ids)) or length >= max(2, min(len(one.ids), len(other.ids)) // 4)
    return (to, at, length) if enough and length else None


def _notes(pairs: TokenPairs, known: NDArray[np.bool_], links: Sequence[tuple[int, ...]]) -> Iterable[str]:
    t_positions, g_positions = pairs.positions
    other = np.flatnonzero(known & (t_positions != g_positions))
    if len(other):
        at = int(other[0])
        yield (
            f"positions differ for {len(other):,} of {pairs.count:,} tokens, token {pairs.index[at]} of sequence "
            f"{pairs.sequence[at]} first: {t_positions[at]} against {g_positions[at]} in the golden run"
        )
    for name, side, own in (("target", pairs.target, 1), ("golden", pairs.golden, 0)):
        if side.padding:
            yield f"{name}: {side.padding:,} tokens are padding and are not compared"
        used = Counter({link[own]: 0 for link in links})
        for link in links:
            used[link[own]] += link[4]
        left = sum(max(len(one.ids) - used.get(number, 0), 0) for number, one in enumerate(side.sequences))
        if left:
            yield f"{name}: {left:,} tokens have no counterpart and are not compared"
