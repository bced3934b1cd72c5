"""Which call of one rank talks to which call of another."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from twinprobe.graph.communication import Message

SEND, RECEIVE, BOTH = "send", "receive", "send_receive"
_SENDS = frozenset({"send", "isend"})
_RECEIVES = frozenset({"recv", "irecv"})
# Collectives with a root: whether the root gives to the others or takes from them.
_ROOT_SENDS = frozenset({"broadcast", "scatter"})
_ROOT_RECEIVES = frozenset({"reduce", "gather"})
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that communicates: where it is, what it sends or takes, and the number that colours it."""

    source: str
    step: int
    rank: int
    node: str
    index: str
    messages: tuple[Message, ...]


def write_calls(path: Path, calls: list[Call]) -> None:
    """Keep the calls of one rank in a file."""
    path.write_bytes(msgspec.msgpack.encode(calls))


def read_calls(path: Path) -> list[Call]:
    """The calls that ``write_calls`` kept."""
    return msgspec.msgpack.decode(path.read_bytes(), type=list[Call])


def link_ranks(calls: list[Call]) -> Iterator[tuple[Call, str]]:
    """For every call that found its partners, the JSON that says which they are."""
    ends: dict[Key, list[Call]] = defaultdict(list)
    for call in calls:
        for message in call.messages:
            ends[_key(call, message)].append(call)
    for call in calls:
        told = [link for message in call.messages if (link := _link(call, message, ends)) is not None]
        if told:
            yield call, json.dumps(told if len(call.messages) > 1 else told[0], separators=(",", ":"))


def _is_transfer(message: Message) -> bool:
    return message.peer is not None and message.api in _SENDS | _RECEIVES


def _key(call: Call, message: Message) -> Key:
    """What a call offers: its end of a transfer, or its part in the n-th collective of a group."""
    where = (call.source, call.step)
    if _is_transfer(message):
        sender, receiver = call.rank, message.peer
        kind = SEND if message.api in _SENDS else RECEIVE
        if kind == RECEIVE:
            sender, receiver = message.peer or 0, call.rank
        return (*where, kind, sender, receiver, message.nth)
    return (*where, message.api, message.group_id, message.peer, message.nth)


def _link(call: Call, message: Message, ends: dict[Key, list[Call]]) -> dict[str, object] | None:
    if _is_transfer(message):
        *where, kind, sender, receiver, nth = _key(call, message)
        wanted = (*where, RECEIVE if kind == SEND else SEND, sender, receiver, nth)
        partners = ends.get(wanted, [])
        word = str(kind)
    else:
        members = set(message.group_ranks)
        partners = [other for other in ends[_key(call, message)] if other.rank != call.rank]
        partners = [other for other in partners if not members or other.rank in members]
        word = _role(call, message)
        if message.peer is not None and word in (SEND, RECEIVE) and call.rank != message.peer:
            partners = [other for other in partners if other.rank == message.peer]
    if not partners:
        return None
    info = {str(other.rank): [other.index, other.node] for other in partners}
    return {"communications_type": word, "nodes_info": info}


def _role(call: Call, message: Message) -> str:
    if message.peer is None:
        return BOTH
    at_root = call.rank == message.peer
    if message.api in _ROOT_SENDS:
        return SEND if at_root else RECEIVE
    if message.api in _ROOT_RECEIVES:
        return RECEIVE if at_root else SEND
    return BOTH
