"""How long merge_result takes and how much memory it needs on the results of a large job.

python bench/merge.py --ranks 256 --rows 50000 --form csv --api Distributed
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import psutil

from twinprobe._compare.merge.job import merge_results
from twinprobe._report.tables import fill_csv, fill_parquet
from twinprobe._report.xlsx import fill_xlsx
from twinprobe._scale.engine import EngineOptions

STACK = "['File /home/user/train.py, line 10, in step, \\n loss = model(batch)']" * 4
OPS = ("all_reduce", "all_gather_into_tensor", "broadcast", "reduce_scatter_tensor")


FAULTY_RANK = 5


def made_table(rows: int, share: float, rank: int) -> pl.DataFrame:
    """A statistics result: this share of the rows are collectives, the rest is other calls."""
    rng = np.random.default_rng(FAULTY_RANK if rank == FAULTY_RANK else 1000 + rank // 8)
    calls = rows // 4
    names, dtypes = [], []
    for call in range(calls):
        is_collective = call < calls * share
        api = f"Distributed.{OPS[call % 4]}.{call // 4}" if is_collective else f"Functional.linear.{call}"
        names += [f"{api}.forward.{place}" for place in ("input.0", "input.group", "output.0", "output.1")]
        dtypes += ["torch.float32", "torch.ProcessGroup", "torch.float32", "torch.ProcessGroup"]
    is_group = pl.Series(dtypes) == "torch.ProcessGroup"
    first = rank // 8 * 8
    group = str(list(range(first, first + 8)))
    columns = {"NPU Name": names, "Bench Name": names, "NPU Dtype": dtypes, "Bench Dtype": dtypes}
    columns |= dict.fromkeys(("NPU Tensor Shape", "Bench Tensor Shape"), ["[8192, 1024]"] * len(names))
    columns |= dict.fromkeys(("NPU Requires_grad", "Bench Requires_grad"), ["False"] * len(names))
    numbers = pl.Series(rng.standard_normal(len(names))).cast(pl.String)
    values = pl.select(pl.when(is_group).then(pl.lit(group)).otherwise(numbers)).to_series()
    for title in ("Max diff", "Min diff", "Mean diff", "L2norm diff"):
        columns[title] = numbers
    for title in ("MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr"):
        columns[title] = numbers + "%"
    for side in ("NPU", "Bench"):
        columns |= dict.fromkeys((f"{side} {stat}" for stat in ("max", "min", "mean", "l2norm")), values)
    columns |= {"Requires_grad Consistent": ["True"] * len(names), "Result": ["pass"] * len(names)}
    columns |= {"Err_message": ["[]"] * len(names), "NPU_Stack_Info": [STACK] * len(names)}
    return pl.DataFrame(columns)


class PeakMemory:
    """The largest resident size of this process and its children, sampled."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.05):
            sizes = [me.memory_info().rss]
            for child in me.children(recursive=True):
                try:
                    sizes.append(child.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            self.peak = max(self.peak, sum(sizes))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--share", type=float, default=0.1, help="share of rows that are collectives")
    parser.add_argument("--form", choices=("csv", "xlsx", "parquet"), default="csv")
    parser.add_argument("--api", default="Distributed")
    parser.add_argument("--workers", type=int)
    asked = parser.parse_args(argv)
    write = {"csv": fill_csv, "xlsx": fill_xlsx, "parquet": fill_parquet}[asked.form]
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "results")
        folder.mkdir()
        made = {}
        for rank in range(asked.ranks):
            path = folder / f"compare_result_rank{rank}_20260101000000.{asked.form}"
            source = made.setdefault((rank // 8, rank == FAULTY_RANK), path)
            if source is path:
                write(made_table(asked.rows, asked.share, rank), path)
            else:
                path.hardlink_to(source)  # the ranks of a group agree: disk is spared
        size = sum(path.stat().st_size for path in folder.iterdir())
        config = Path(root, "config.yaml")
        config.write_text(f"api: [{asked.api}]\n")
        with PeakMemory() as memory:
            start = time.perf_counter()
            outcome = merge_results(folder, Path(root, "out"), config, engine=EngineOptions(workers=asked.workers))
            seconds = time.perf_counter() - start
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{asked.ranks} ranks x {asked.rows} rows, {asked.form}, {size / 1e6:.0f} MB in: {seconds:.1f} s")
        print(f"  {outcome.rows} rows merged, {len(outcome.checks)} checks, {len(outcome.disagreements)} disagree")
        print(f"  peak {memory.peak / 1e6:.0f} MB with all workers, {own:.0f} MiB in this process (with the set-up)")
        print(f"  workbook {outcome.path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
