"""Every reader of foreign files: what it is given, how that is changed, and what is done with what it gives back."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fuzz_commands as commands
import fuzz_mutations as change
import fuzz_seeds as seeds


@dataclass(frozen=True)
class Reader:
    """``read`` takes the path of a file called ``file`` and uses all that it finds there."""

    file: str
    seeds: Callable[[], list[bytes]]
    mutation: change.Mutation
    read: Callable[[Path], object]


def _run(path: Path) -> None:
    from twinprobe._runs.names import parse_op
    from twinprobe._runs.run import open_run

    run = open_run(path)
    assert run.mode
    for op in run.ops:
        parse_op(op).renumbered(1)


def _stacks(path: Path) -> None:
    from twinprobe._runs.dump_json import read_stacks

    found, _ = read_stacks(path)
    for op in found.of_op:
        "".join(found[op])


def _parents(path: Path) -> None:
    from twinprobe._runs.dump_json import read_parents

    for name, parent in read_parents(path)[0].items():
        assert isinstance(name, str)
        assert parent is None or isinstance(parent, str)


def _tensor(path: Path) -> None:
    from twinprobe._runs.tensors.tensor_files import open_tensor

    open_tensor(path).data.tobytes()  # every byte that it points to is there


def _foreign(path: Path) -> None:
    """Open what no recorder wrote, and read all of its tensors."""
    from twinprobe._runs.run import open_run
    from twinprobe._runs.tensors.tensor_files import open_named

    run = open_run(path)
    for file in run.table["file"].drop_nulls().to_list():
        open_named(run.tensor_folder, file).data.tobytes()


def _atb(path: Path) -> None:
    from twinprobe._runs.llm.files import open_llm_tensor

    open_llm_tensor(path.parent, path.name).data.tobytes()


def _vis(path: Path) -> None:
    from twinprobe._graph.read.json import index_of, write_index

    try:
        _graph(write_index(path))
    finally:
        index_of(path).unlink(missing_ok=True)


def _graph(path: Path) -> None:
    from twinprobe._graph.read.db import SOURCES, GraphFile

    with GraphFile(path) as file:
        config = file.config()
        graph = file.graph(config.steps[0], config.ranks[0])
        for side in SOURCES:
            rows = [row for row in (graph.root(side), graph.node(side, "DefaultModel", full=True)) if row]
            rows += graph.children(side, "DefaultModel", 0, 50, None)
            rows += graph.by_order(side, [row[0] for row in graph.outline(side)][:50])
            assert all(isinstance(frame, str) for row in rows for frame in graph.stack(row))
            graph.knowledge(side, [str(row["node_name"]) for row in rows])
            assert len(graph.search(side, "a", 10)) <= 10
            for answer in (graph.outputs(side), graph.errors(side), graph.verdicts(side)):
                list(answer)


def _yaml(module: str, function: str, path: Path) -> None:
    from importlib import import_module

    getattr(import_module(module), function)(path)


def _compare_json(path: Path) -> None:
    from twinprobe._graph.compare_json import read_compare_json
    from twinprobe._layout.layout import layouts_of

    found = read_compare_json(path)
    layouts_of(found.parallel_merge, golden=found.bench_path is not None)


def _topology(path: Path) -> None:
    from twinprobe._runs.llm.tree import read_topology

    assert [node.folder for node in read_topology(path)[0].walk()]


def _model_tree(path: Path) -> None:
    from twinprobe._runs.llm.tree import read_model_tree

    assert list(read_model_tree(path).finished())


def _llm_statistics(path: Path) -> None:
    from twinprobe._runs.llm.files import TORCH, TokenFolder, recorded_statistics

    folder = path.parent / "run" / "0" / "root.head"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / path.name).unlink(missing_ok=True)
    os.link(path, folder / path.name)
    files, found = recorded_statistics(TokenFolder(TORCH, path.parent / "run", "0"))
    assert sum(map(len, files.values())) == len(found)


def _kernel_statistics(path: Path) -> None:
    from twinprobe._runs.kernel_dump import read_statistics

    for name, leaf in read_statistics(path, []):
        assert name.shown is not None
        assert leaf.kind is not None


def _name_list(path: Path) -> None:
    from twinprobe._runs.kernel_dump import parse_kernel_name, read_name_list

    for name in read_name_list(path.parent)[0].values():
        parse_kernel_name(name)


def _in_pieces(read: Callable[[Path], object], path: Path) -> None:
    """Read a small file as a large one is read: piece by piece."""
    import pytest

    from twinprobe._align.auto import alignment as file
    from twinprobe._runs import dump_json
    from twinprobe._runs import dump_json as dump_pieces
    from twinprobe._runs import json_pieces as member_pieces

    with pytest.MonkeyPatch.context() as limits:
        for module in (dump_json, member_pieces, file):
            limits.setattr(module, "_WHOLE", 0)
        for module in (dump_pieces, member_pieces):
            limits.setattr(module, "PIECE", 500)
        read(path)


_mapping = partial(partial, _yaml)

READERS: dict[str, Reader] = {
    "dump": Reader("dump.json", seeds.dumps, change.change_json, _run),
    "part": Reader("dump.json.part", seeds.parts, change.change_text, _run),
    "debug": Reader("debug.json", seeds.points, change.change_json, _run),
    "stack": Reader("stack.json", seeds.stacks, change.change_json, _stacks),
    "construct": Reader("construct.json", seeds.constructs, change.change_json, _parents),
    "dump_in_pieces": Reader("dump.json", seeds.dumps, change.change_json, partial(_in_pieces, _run)),
    "stack_in_pieces": Reader("stack.json", seeds.stacks, change.change_json, partial(_in_pieces, _stacks)),
    "construct_in_pieces": Reader("construct.json", seeds.constructs, change.change_json,
                                  partial(_in_pieces, _parents)),
    "alignment_in_pieces": Reader("alignment.json", seeds.alignments, change.change_json,
                                  partial(_in_pieces, _mapping("twinprobe._align.auto.alignment", "read_alignment"))),
    "pt": Reader("t.pt", seeds.tensors, change.change_zip, _tensor),
    "npy": Reader("t.npy", seeds.arrays, change.change_bytes, _tensor),
    "state": Reader("model.pth", partial(seeds.saved, "state.bin", "old_state.bin", "net.pdparams"),
                    change.change_bytes, _foreign),
    "safetensors": Reader("model.safetensors", partial(seeds.saved, "a.safetensors"), change.change_bytes, _foreign),
    "npz": Reader("a.npz", seeds.archives, change.change_zip, _foreign),
    "ckpt": Reader("net.ckpt", partial(seeds.saved, "net.ckpt"), change.change_bytes, _foreign),
    "polygraphy": Reader("out.json", seeds.tool_files, change.change_json, _foreign),
    "debug_mode": Reader("log.txt", partial(seeds.saved, "debug_mode.txt"), change.change_text, _foreign),
    "bin": Reader("outtensor0.bin", seeds.atb_files, change.change_text, _atb),
    "vis": Reader("compare_1.vis", seeds.vis_files, change.change_json, _vis),
    "vis_db": Reader("compare_1.vis.db", seeds.vis_databases, change.change_sqlite, _graph),
    "page_of_vis": Reader("compare_1.vis", seeds.vis_files, change.change_json, commands.ask_page),
    "page_of_vis_db": Reader("compare_1.vis.db", seeds.vis_databases, change.change_sqlite, commands.ask_page),
    "api_mapping": Reader("am.yaml", partial(seeds.mappings, "am"), change.change_text,
                          _mapping("twinprobe._align.mapping.api_mapping", "read_api_file")),
    "cell_mapping": Reader("cm.yaml", partial(seeds.mappings, "cm"), change.change_text,
                           _mapping("twinprobe._align.mapping.flat_mapping", "read_cell_file")),
    "data_mapping": Reader("dm.yaml", partial(seeds.mappings, "dm"), change.change_text,
                           _mapping("twinprobe._align.mapping.flat_mapping", "read_data_file")),
    "layer_mapping": Reader("lm.yaml", partial(seeds.mappings, "lm"), change.change_text,
                            _mapping("twinprobe._align.mapping.layer_tree", "read_layer_file")),
    "merge_config": Reader("config.yaml", seeds.merge_configs, change.change_text,
                           _mapping("twinprobe._compare.merge.config", "read_merge_config")),
    "compare_json": Reader("compare.json", seeds.compare_files, change.change_json, _compare_json),
    "op_mapping": Reader("op_mapping_file.json", seeds.operator_tables, change.change_json,
                         _mapping("twinprobe._align.ops.table", "read_table")),
    "alignment": Reader("alignment.json", seeds.alignments, change.change_json,
                        _mapping("twinprobe._align.auto.alignment", "read_alignment")),
    "model_tree": Reader("model_tree.json", seeds.model_trees, change.change_json, _model_tree),
    "topology": Reader("model.json", seeds.topologies, change.change_json, _topology),
    "llm_statistics": Reader("statistics.csv", seeds.llm_statistics, change.change_text, _llm_statistics),
    "kernel_statistics": Reader("statistic.csv", seeds.kernel_statistics, change.change_text, _kernel_statistics),
    "kernel_names": Reader("mapping.csv", seeds.name_lists, change.change_text, _name_list),
    "result_csv": Reader("compare_result_rank0_20260101000000.csv", seeds.result_tables, change.change_text,
                         commands.read_result),
    "result_parquet": Reader("compare_result_rank0_20260101000000.parquet", seeds.result_columns, change.change_bytes,
                             commands.read_result),
    "result_xlsx": Reader("compare_result_rank0_20260101000000.xlsx", seeds.workbooks, change.change_zip,
                          commands.read_result),
    "compare_command": Reader("dump.json", seeds.dumps, change.change_json, commands.compare),
    "graph_command": Reader("construct.json", seeds.constructs, change.change_json, commands.draw),
    "mapped_compare": Reader("lm.yaml", partial(seeds.mappings, "lm"), change.change_text, commands.compare_mapped),
}  # fmt: skip


def scratch_folder() -> Path | None:
    """A folder in memory where there is one: every input is a file."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else None
