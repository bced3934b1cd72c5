"""What each mapping costs beside the exact match, on two runs of 20,000 entries each.

    python bench/mapping.py [--entries 20000] [--reference ../shared/reference]

The runs are real small dumps repeated in blocks. Times are processor time, the best of several rounds, without reading
the dumps. The measure of all is the exact match key by key; two runs of the same calls in the same order are paired at
once, which no mapping can be. Mappings are measured with --align names; "no option" shows what automatic alignment adds
where names differ.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from make_runs import repeat_dump
from twinprobe._align.links import Pairs
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher, join_names, match_names
from twinprobe._runs.run import Run, open_run

ROUNDS = 5
LAYERS = """
LlamaModel: {no_such_layer: other}
LlamaMLP: {gate_proj: gate_proj, up_proj: up_proj}
LlamaDecoderLayer: {self_attn: self_attn}
"""
CELLS = "LlamaMLP: LlamaMLP\nself_attn: self_attn\nmlp.gate_proj: mlp.gate_proj\n"
APIS = "- {ms_api: Torch.matmul, pt_api: Torch.matmul, ms_args: [0, 1], pt_args: [0, 1]}\n"


def main(argv: list[str] | None = None) -> None:
    """Make the runs, time all modes, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--reference", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "reference")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name, content in (("lm.yaml", LAYERS), ("cm.yaml", CELLS), ("am.yaml", APIS)):
            (work / name).write_text(content)
        dumps = arguments.reference / "msprobe" / "dumps"
        one = _repeated(dumps / "mix_stat_b", work / "target", arguments.entries)
        other = _repeated(dumps / "mix_stat_a", work / "golden", arguments.entries)
        _report("PyTorch against PyTorch", one, other, work, work / "lm.yaml", work / "cm.yaml", work / "am.yaml")
        dumps, files = arguments.reference / "mindspore" / "dumps", arguments.reference / "mindspore" / "mapping"
        one = _repeated(dumps / "ms_mix_statistics", work / "ms", arguments.entries)
        other = _repeated(dumps / "pt_mix_statistics", work / "pt", arguments.entries)
        # The blocks stand above the model, so the rules of the top layer hold inside each block.
        layers = (files / "lm_good.yaml").read_text().replace("TopLayer:\n  module: model\n", "", 1)
        blocks = "".join(f"block{at}:\n  module: model\n" for at in range(1 + arguments.entries // 281))
        (work / "lm_ms.yaml").write_text(blocks + layers)
        cells = (files / "cm_good.yaml").read_text()
        (work / "cm_ms.yaml").write_text(cells)
        _report(
            "MindSpore against PyTorch", one, other, work,
            work / "lm_ms.yaml", work / "cm_ms.yaml", files / "am_list_outputs.yaml",
        )  # fmt: skip


def _repeated(source: Path, target: Path, entries: int) -> Run:
    repeat_dump(next(source.rglob("dump.json")).parent, target, entries)
    return open_run(target)


def _report(title: str, target: Run, golden: Run, work: Path, layer: Path, cell: Path, api: Path) -> None:
    print(
        f"\n{title}: {len(target.ops)} + {len(golden.ops)} entries, {target.table.height} + {golden.table.height} rows"
    )
    base, matched = _time(join_names, target, golden)
    print(f"{'exact':26} {base * 1000:7.1f} ms   1.00   {matched} pairs")
    seconds, _ = _time(match_names, target, golden)
    print(f"{'exact, equal runs at once':26} {seconds * 1000:7.1f} ms   {seconds / base:4.2f}")
    modes: dict[str, MappingOptions] = {
        "no option": MappingOptions(),
        "-fm": MappingOptions(fuzzy=True, align="names"),
        "-am": MappingOptions(api=True, align="names"),
        "-am file": MappingOptions(api=api, align="names"),
        "-cm": MappingOptions(cell=True, align="names"),
        "-cm file": MappingOptions(cell=cell, align="names"),
        "-lm file": MappingOptions(layer=layer, align="names"),
    }
    for name, options in modes.items():
        seconds, matched = _time(build_matcher(options), target, golden)
        print(f"{name:26} {seconds * 1000:7.1f} ms   {seconds / base:4.2f}   {matched} pairs")
    written = MappingOptions(layer=layer, output=work, timestamp="bench", align="names")
    seconds, _ = _time(build_matcher(written), target, golden)
    print(f"{'-lm file, written out':26} {seconds * 1000:7.1f} ms   {seconds / base:4.2f}")
    data = MappingOptions(data=work / "data_mapping_bench.yaml", align="names")

    def read_and_match(one: Run, other: Run) -> Pairs:
        return build_matcher(data)(one, other)

    seconds, matched = _time(read_and_match, target, golden)
    print(f"{'-dm file, reading included':26} {seconds * 1000:7.1f} ms   {seconds / base:4.2f}   {matched} pairs")


def _time(match: Callable[[Run, Run], Pairs], target: Run, golden: Run) -> tuple[float, int]:
    best, matched = float("inf"), 0
    for _ in range(ROUNDS):
        begin = time.process_time()
        pairs = match(target, golden)
        best = min(best, time.process_time() - begin)
        matched = int(((pairs.target >= 0) & (pairs.golden >= 0)).sum())
    return best, matched


if __name__ == "__main__":
    main()
