"""Which collective or point-to-point call of one rank belongs to which call of another."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinprobe.runs.names import FORWARD, parse_op
from twinprobe.runs.run import Run

if TYPE_CHECKING:
    import polars as pl

COLLECTIVE_PREFIXES = frozenset({"Distributed", "MintDistributed"})
_SEND = {"send": "recv", "isend": "recv", "send_object_list": "recv"}
_RECEIVE = {"recv", "irecv", "recv_object_list"}
_EVERYONE = "all"
_RANK_LIST = re.compile(r"\[[\d\s,]*\]")


@dataclass(frozen=True, slots=True)
class Meeting:
    """A call at which ranks exchange data: its place in the rank's order and the keys it shares with its partners."""

    order: int
    op: str
    keys: tuple[str, ...]


def meetings(run: Run, rank: int) -> list[Meeting]:
    """All exchanges of a rank in order. Equal keys on two ranks mean that they took part in the same exchange."""
    from twinprobe.runs.table import INPUT

    wanted = [(at, parse_op(name)) for at, name in enumerate(run.ops) if name.split(".", 1)[0] in COLLECTIVE_PREFIXES]
    wanted = [(at, op) for at, op in wanted if op.direction == FORWARD]
    if not wanted:
        return []
    rows = _rows_by_op(run.table, INPUT)
    seen: Counter[str] = Counter()
    result = []
    for at, op in wanted:
        result.append(Meeting(at, op.text, tuple(_numbered(seen, _keys(op.body, rows.get(at, []), rank)))))
    return result


def _rows_by_op(table: pl.DataFrame, role: int) -> dict[int, list[tuple[str, str | None, str | None]]]:
    chosen = table.filter(table["role"] == role).select("op", "name", "max_text", "peer")
    rows: dict[int, list[tuple[str, str | None, str | None]]] = {}
    for op, name, text, peer in chosen.iter_rows():
        rows.setdefault(op, []).append((name, text, peer))
    return rows


def _keys(api: str, rows: list[tuple[str, str | None, str | None]], rank: int) -> list[str]:
    arguments = {name.rpartition(".")[2]: text for name, text, _ in rows if text is not None}
    peers = [peer for _, _, peer in rows if peer]
    if peers:
        return [_peer_key(peer, rank) for peer in peers]
    if api in _SEND and (other := arguments.get("dst") or arguments.get("group_dst")):
        return [f"message {rank}->{other}"]
    if api in _RECEIVE and (other := arguments.get("src") or arguments.get("group_src")):
        return [f"message {other}->{rank}"]
    return [f"{api} {_group(arguments.get('group'))}"]


def _peer_key(peer: str, rank: int) -> str:
    operation, _, other = peer.partition(":")
    return f"message {other}->{rank}" if "recv" in operation else f"message {rank}->{other}"


def _group(text: str | None) -> str:
    """The ranks of a group, however it is written: [0, 1] or tp-0-1."""
    if not text:
        return _EVERYONE
    if text.startswith("[") and not _RANK_LIST.fullmatch(text):
        return text
    ranks = [int(part) for part in re.findall(r"\d{1,18}", text)]
    return str(sorted(ranks)) if ranks else text


def _numbered(seen: Counter[str], keys: list[str]) -> list[str]:
    numbered = []
    for key in keys:
        numbered.append(f"{key} #{seen[key]}")
        seen[key] += 1
    return numbered
