"""Calls that talk to other ranks, and to which calls there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support import forward, tensor, value, write_dump
from twinprobe._graph.communication import Call, link_ranks, read_communication
from twinprobe._runs.run import open_run

WORLD = {"type": "torch.ProcessGroup", "group_ranks": [0, 1, 2], "group_id": "abc"}


def links(folder: Path, ranks: list[dict[str, Any]]) -> dict[tuple[int, str], Any]:
    calls = []
    for rank, data in enumerate(ranks):
        write_dump(folder / f"rank{rank}", data)
        for name, messages in read_communication(open_run(folder / f"rank{rank}")).calls.items():
            calls.append(Call("NPU", 0, rank, name, f"{rank}.5", tuple(messages)))
    return {(call.rank, call.node): json.loads(text) for call, text in link_ranks(calls)}


def collective(api: str, call: int = 0, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {f"Distributed.{api}.{call}.forward": forward([tensor(), *args], [tensor()], group=WORLD, **kwargs)}


def test_a_collective_without_root_links_all_ranks_of_its_group(tmp_path: Path) -> None:
    found = links(tmp_path, [collective("all_reduce")] * 3)
    name = "Distributed.all_reduce.0.forward"
    assert found[1, name] == {
        "communications_type": "send_receive", "nodes_info": {"0": ["0.5", name], "2": ["2.5", name]},
    }  # fmt: skip


def test_the_nth_call_meets_the_nth_call(tmp_path: Path) -> None:
    twice = collective("all_reduce", 4) | collective("all_reduce", 7)
    found = links(tmp_path, [twice, collective("all_reduce", 0) | collective("all_reduce", 1)])
    assert found[0, "Distributed.all_reduce.7.forward"]["nodes_info"]["1"][1] == "Distributed.all_reduce.1.forward"


def test_a_broadcast_is_sent_by_its_root_and_received_by_the_others(tmp_path: Path) -> None:
    found = links(tmp_path, [collective("broadcast", 0, value(1))] * 3)
    name = "Distributed.broadcast.0.forward"
    assert found[1, name]["communications_type"] == "send"
    assert set(found[1, name]["nodes_info"]) == {"0", "2"}
    assert found[2, name] == {"communications_type": "receive", "nodes_info": {"1": ["1.5", name]}}


def test_a_reduce_is_received_by_its_root(tmp_path: Path) -> None:
    found = links(tmp_path, [collective("reduce", 0, dst=value(0))] * 2)
    name = "Distributed.reduce.0.forward"
    assert found[0, name]["communications_type"] == "receive"
    assert found[1, name]["communications_type"] == "send"


def test_messages_meet_by_their_ends_in_order(tmp_path: Path) -> None:
    sender = {
        "Distributed.isend.0.forward": forward([tensor()], [tensor()], dst=value(1)),
        "Distributed.send.0.forward": forward([tensor(), value(1)], [tensor()]),
    }
    receiver = {
        "Distributed.recv.0.forward": forward([tensor()], [tensor()], src=value(0)),
        "Distributed.irecv.0.forward": forward([tensor()], [tensor()], src=value(0)),
    }
    found = links(tmp_path, [sender, receiver])
    partner = {key: link["nodes_info"] for key, link in found.items()}
    assert partner[0, "Distributed.isend.0.forward"] == {"1": ["1.5", "Distributed.recv.0.forward"]}
    assert partner[0, "Distributed.send.0.forward"] == {"1": ["1.5", "Distributed.irecv.0.forward"]}
    assert found[1, "Distributed.recv.0.forward"]["communications_type"] == "receive"


def test_a_batch_of_messages_has_a_list_of_links(reference: Path) -> None:
    folder = next((reference / "msprobe" / "dumps" / "dist_a").rglob("rank0")).parent
    calls = []
    for rank in (0, 1):
        for name, messages in read_communication(open_run(folder / f"rank{rank}")).calls.items():
            calls.append(Call("NPU", 0, rank, name, "0", tuple(messages)))
    found = {(call.rank, call.node): json.loads(text) for call, text in link_ranks(calls)}
    batch = found[0, "Distributed.batch_isend_irecv.0.forward"]
    assert [link["communications_type"] for link in batch] == ["send", "receive"]
    assert all(link["nodes_info"]["1"][1] == "Distributed.batch_isend_irecv.0.forward" for link in batch)


def test_a_call_whose_partner_was_not_recorded_has_no_link(tmp_path: Path) -> None:
    assert links(tmp_path, [collective("all_reduce"), {"Torch.add.0.forward": forward([tensor()], [tensor()])}]) == {}
