"""Collectives and messages: what a run says about them, and which call of one rank talks to which of another."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from twinprobe._runs.dump_json import read_entries
from twinprobe._runs.names import parse_op
from twinprobe._runs.run import Run
from twinprobe.errors import BadInput

PREFIXES = ("Distributed.", "MintDistributed.")
_INPUTS = ("input_args", "input_kwargs", "input")
_SECTIONS = (*_INPUTS, "parameters", "output")
_PLACES = {"send": ("dst", 1), "isend": ("dst", 1), "recv": ("src", 1), "irecv": ("src", 1), "broadcast": ("src", 1),
           "reduce": ("dst", 1), "scatter": ("src", 2), "gather": ("dst", 2)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """One end of a transfer: what the call does, with whom, and which of its kind it is."""

    api: str
    peer: int | None
    group_id: str
    group_ranks: tuple[int, ...]
    nth: int


@dataclass
class Communication:
    """The calls of a run that talk to other ranks, and the groups among its values as JSON, by row."""

    calls: dict[str, list[Message]] = field(default_factory=dict)
    group_texts: dict[int, str] = field(default_factory=dict)


def read_communication(run: Run) -> Communication:
    """Read the entries of the calls that communicate once more, for what the tables do not hold."""
    communication = Communication()
    names = {name: op for op, name in enumerate(run.ops) if name.startswith(PREFIXES)}
    groups = run.table.filter(run.table["dtype"].str.ends_with("ProcessGroup"))["op"].unique().to_list()
    names |= {run.ops[op]: op for op in groups}
    if not names:
        return communication
    entries = read_entries(run.path)
    seen: Counter[tuple[object, ...]] = Counter()
    for name, raw in entries:
        if name in names:
            try:
                entry = msgspec.json.decode(raw) if entries.raw else raw
            except (msgspec.DecodeError, ValueError, RecursionError):
                entry = None
            if not isinstance(entry, dict):
                raise BadInput("is not an object", where=f"{run.path}: data[{name!r}]")
            _note_groups(run, names[name], entry, communication.group_texts)
            if name.startswith(PREFIXES) and ".forward" in name:
                communication.calls[name] = _messages(name, entry, seen)
    return communication


def _note_groups(run: Run, op: int, entry: dict[str, Any], texts: dict[int, str]) -> None:
    leaves = [leaf for leaf in _leaves(entry) if str(leaf.get("type", "")).endswith("ProcessGroup")]
    if not leaves:
        return
    first, last = run.table["op"].to_numpy().searchsorted((op, op + 1)).tolist()
    dtypes = run.table["dtype"][first:last].to_list()
    rows = [row for row, dtype in enumerate(dtypes, start=first) if dtype and dtype.endswith("ProcessGroup")]
    for row, leaf in zip(rows, leaves, strict=False):
        group = {key: str(leaf[key]) for key in ("type", "group_ranks", "group_id") if leaf.get(key) is not None}
        texts[row] = json.dumps(group | {"data_name": "-1"}, ensure_ascii=False, separators=(",", ":"))


def _messages(name: str, entry: dict[str, Any], seen: Counter[tuple[object, ...]]) -> list[Message]:
    api = parse_op(name).body
    leaves = list(_leaves({key: entry[key] for key in _INPUTS if key in entry}))
    operations = [leaf for leaf in leaves if str(leaf.get("class_type", "")).endswith("P2POp")]
    group = next((leaf for leaf in leaves if leaf.get("group_ranks") or leaf.get("group_id")), {})
    group_id, ranks = str(group.get("group_id") or ""), group.get("group_ranks") or ()
    if operations:
        wanted = [(str(leaf.get("op")), leaf.get("peer"), str(leaf.get("group_id") or group_id)) for leaf in operations]
    else:
        wanted = [(api, _peer(api, entry), group_id)]
    members = tuple(rank for rank in ranks if isinstance(rank, int))
    messages = []
    for kind, peer, group_id in wanted:
        number = peer if isinstance(peer, int) and not isinstance(peer, bool) else None
        # Messages between two ranks meet in their order; collectives in the order of their group.
        transfer = number is not None and kind.removeprefix("i") in ("send", "recv")
        key = (kind.removeprefix("i"), number) if transfer else (kind, number, group_id)
        messages.append(Message(kind, number, group_id, members, seen[key]))
        seen[key] += 1
    return messages


def _peer(api: str, entry: dict[str, Any]) -> Any:
    """The rank at the other end, or the root of a collective, by keyword or by place."""
    place = _PLACES.get(api)
    if place is None:
        return None
    keyword, position = place
    kwargs = entry.get("input_kwargs")
    leaf = kwargs.get(keyword) if isinstance(kwargs, dict) else None
    if leaf is None:
        args = entry.get("input_args") or entry.get("input")
        leaf = args[position] if isinstance(args, list) and len(args) > position else None
    return leaf.get("value") if isinstance(leaf, dict) else None


def _leaves(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    if depth > 400:
        return
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item, depth + 1)
    elif isinstance(value, dict):
        if isinstance(value.get("type"), str) or "class_type" in value:
            yield value
            return
        inner = [value[key] for key in _SECTIONS if key in value] if depth == 0 else value.values()
        for item in inner:
            yield from _leaves(item, depth + 1)


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
        links = [link for message in call.messages if (link := _link(call, message, ends)) is not None]
        if links:
            yield call, json.dumps(links if len(call.messages) > 1 else links[0], separators=(",", ":"))


def _is_transfer(message: Message) -> bool:
    return message.peer is not None and message.api in _SENDS | _RECEIVES


def _key(call: Call, message: Message) -> Key:
    """What a call offers: its end of a transfer, or its part in the n-th collective of a group."""
    where = (call.source, call.step)
    if _is_transfer(message):
        is_sender = message.api in _SENDS
        ends = (call.rank, message.peer) if is_sender else (message.peer, call.rank)
        return (*where, SEND if is_sender else RECEIVE, *ends, message.nth)
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
    if message.peer is None or message.api not in _ROOT_SENDS | _ROOT_RECEIVES:
        return BOTH
    return SEND if (call.rank == message.peer) == (message.api in _ROOT_SENDS) else RECEIVE
