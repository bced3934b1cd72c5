"""What the verbs of ``twinprobe`` return: a comparison, what was found, an alignment."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from twinprobe._lazy import polars as pl

if TYPE_CHECKING:
    from rich.console import Console

    from twinprobe._align.auto.alignment import Alignment
    from twinprobe._compare.one import Comparison as Pair
    from twinprobe._compare.request import Job
    from twinprobe._judge.across.steps import StepsComparison
    from twinprobe._judge.summary import Divergence
    from twinprobe._runs.run import Run

    PathLike = str | os.PathLike[str]

_VERDICTS = ("pass", "warning", "error")
# The typed columns of the pair table under names that need no explanation.
_COLUMNS = {"t_name": "target", "g_name": "golden", "rule": "paired_by"} | {
    f"{short}_{name}": f"{side}_{name}"
    for name in ("dtype", "shape", "max", "min", "mean", "norm")
    for short, side in (("t", "target"), ("g", "golden"))
}


@dataclass(repr=False)
class Comparison:
    """Two runs, or all ranks and steps of two folders, compared. It is true when they agree.

    ``failures`` names what was asked for and could not be compared, ``notes`` what else a reader should know. ``steps``
    says where runs of many steps part; of watched runs it is all there is.
    """

    pairs: dict[str, Pair]
    failures: list[str]
    notes: list[str]
    _jobs: Sequence[Job]
    steps: StepsComparison | None = None

    @property
    def agrees(self) -> bool:
        """Whether everything was compared, and nothing differs more than noise explains and with any effect."""
        summaries = [pair.summary for pair in self.pairs.values()]
        clean = all(one.first is None and not one.unread for one in summaries)
        if not summaries and self.steps is not None:
            clean = not self.steps.parting
        return clean and not self.failures

    def __bool__(self) -> bool:
        return self.agrees

    @property
    def first(self) -> Divergence | None:
        """Where the runs part: of the earliest step, and in it of the lowest rank that shows it."""
        return next((pair.summary.first for pair in self.pairs.values() if pair.summary.first), None)

    @property
    def summary(self) -> str:
        """What the command prints, without colours."""
        from twinprobe._report.console import plain_text, print_summary

        def show(console: Console) -> None:
            for pair in self.pairs.values():
                print_summary(pair.summary, console)

        begin = [] if self.steps is None else [self.steps.parting.sentence]
        return "\n".join([*begin, plain_text(show), *self.failures, *self.notes]).strip()

    @property
    def table(self) -> pl.DataFrame:
        """One row for each pair of recorded values, as numbers; ``verdict``, ``reason`` and ``origin`` in words.

        ``to_pandas()`` and ``to_arrow()`` turn it into other frames. The files that ``save`` writes hold the columns
        of the command instead. Of watched runs, one row for each step.
        """
        if not self.pairs and self.steps is not None:
            from twinprobe._report.overview import steps_table

            return steps_table(self.steps)
        return pl.concat([_numbers(pair, name if len(self.pairs) > 1 else None) for name, pair in self.pairs.items()])

    @property
    def tokens(self) -> pl.DataFrame | None:
        """One row for each token, of the first pair that was compared by tokens; None where none was."""
        return next((pair.tokens.table for pair in self.pairs.values() if pair.tokens is not None), None)

    def save(self, folder: PathLike, formats: str | Iterable[str] = ("xlsx",)) -> list[Path]:
        """Write the result files of the command, for each rank, and return their paths."""
        from twinprobe._report.files import own_timestamp, prepare_folder, result_stem, timestamp_now
        from twinprobe._report.html import write_index
        from twinprobe._report.tables import write_reports

        root, wanted = as_path(folder), [formats] if isinstance(formats, str) else list(formats)
        prepare_folder(root)
        files: list[Path] = []
        with own_timestamp(root, timestamp_now()) as stamp:
            for job, pair in zip(self._jobs, self.pairs.values(), strict=True):
                stem = result_stem(stamp, job.label, debug=pair.target.single_points)
                where = root / job.key.subfolder
                prepare_folder(where)
                files += write_reports(pair.table(), pair.summary, where, stem, wanted)
                if pair.tokens is not None:
                    files += pair.tokens.write(where, stem, wanted)
            if self.steps is not None:
                from twinprobe._report.overview import write_steps

                files += write_steps(self.steps, root, stamp, wanted)
        write_index(root)
        return files

    def show(self) -> Path:
        """Write the html report into a new folder and open the first page in the browser."""
        files = self.save(mkdtemp(prefix="twinprobe-"), "html")
        page = next(file for file in (files if self.steps is None else reversed(files)) if file.suffix == ".html")
        webbrowser.open(page.as_uri())
        return page

    @property
    def metrics(self) -> dict[str, float]:
        """Counts and the largest error as one flat dictionary, as MLflow, W&B and other trackers take it."""
        summaries = [pair.summary for pair in self.pairs.values()]
        found = {name: float(sum(getattr(one, name) for one in summaries))
                 for name in ("rows", "matched", "target_only", "golden_only", "unread")}  # fmt: skip
        found |= {name: float(sum(one.verdicts[name] for one in summaries)) for name in ("pass", "warning", "error")}
        if not self.pairs:
            return {"agrees": float(self.agrees), **found}
        errors = self.table["relative_error"].drop_nulls().drop_nans()
        found["max_relative_error"] = float(errors.max() or 0.0)  # type: ignore[arg-type]
        return {"agrees": float(self.agrees), **found}

    def _repr_html_(self) -> str:
        from twinprobe._notebook import card

        verdicts = ", ".join(f"{int(count):,} {name}" for name, count in self.metrics.items() if name in _VERDICTS)
        facts: list[tuple[str, object]] = [("verdicts", verdicts)]
        facts += [("not compared", failure) for failure in self.failures[:3]]
        shown = card("the runs agree" if self else "the runs differ", facts, good=self.agrees)
        return shown if self.first is None else shown + self.first._repr_html_()

    def __repr__(self) -> str:
        rows = sum(pair.summary.rows for pair in self.pairs.values())
        what = f"{len(self.pairs)} ranks and steps, {rows:,} rows" if len(self.pairs) > 1 else f"{rows:,} rows"
        if not self.pairs and self.steps is not None:
            what = f"{len(self.steps.trends[0].steps)} watched steps"
        lines = [f"<Comparison of {what}: {'agrees' if self.agrees else 'differs'}>"]
        lines += [] if self.steps is None else [f"  {self.steps.parting.sentence}"]
        first = self.first
        if first is not None:
            lines += [f"  first divergence: {first.op}", f"  {first.sentence}", f"  {first.stack_line}"]
        lines += [f"  not compared: {failure}" for failure in self.failures[:3]]
        return "\n".join(line for line in lines if line.strip())


@dataclass(repr=False)
class Found:
    """Where the difference began, on which ranks: a sentence each, and the files that tell more."""

    findings: list[str]
    files: list[Path]
    failures: list[str]
    agrees: bool
    first: Divergence | None = None
    """Where the runs part, on the lowest rank that shows it."""

    def __bool__(self) -> bool:
        return self.agrees

    @property
    def summary(self) -> str:
        """All findings, and what could not be compared."""
        return "\n".join([*self.findings, *self.failures]) or "the runs agree"

    def _repr_html_(self) -> str:
        from twinprobe._notebook import card

        facts = [("finding", one) for one in self.findings[:8]] + [("not compared", one) for one in self.failures[:3]]
        return card("the runs agree" if self else "the runs differ", facts, good=self.agrees)

    def __repr__(self) -> str:
        lines = [f"<Found: {'agrees' if self.agrees else 'differs'}, {len(self.findings)} findings>"]
        lines += [f"  {one}" for one in self.findings[:5]] + [f"  not compared: {one}" for one in self.failures[:3]]
        return "\n".join(lines)


@dataclass(repr=False)
class Aligned:
    """How two models fit: which call of one belongs to which of the other, by which rule, how surely."""

    alignment: Alignment
    target: Run
    golden: Run

    @property
    def summary(self) -> str:
        """What the command prints."""
        from twinprobe._report.alignment import alignment_lines

        return "\n".join(alignment_lines(self.alignment))

    @property
    def table(self) -> pl.DataFrame:
        """One row for each relation: the names on either side, the rule, the confidence from 0 to 1."""
        rows = [(list(one.target), list(one.golden), one.rule, one.confidence) for one in self.alignment.relations]
        names = pl.List(pl.String)
        schema: dict[str, Any] = {"target": names, "golden": names, "rule": pl.String, "confidence": pl.Float64}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def save(self, folder: PathLike) -> list[Path]:
        """Write alignment.json, the mapping files and alignment.html, and return their paths."""
        from twinprobe._report.alignment import write_alignment
        from twinprobe._report.html import write_index

        files = write_alignment(self.alignment, self.target, self.golden, as_path(folder))
        write_index(as_path(folder))
        return files

    def show(self) -> Path:
        """Write the files into a new folder and open both trees side by side in the browser."""
        page = next(file for file in self.save(mkdtemp(prefix="twinprobe-")) if file.suffix == ".html")
        webbrowser.open(page.as_uri())
        return page

    def _repr_html_(self) -> str:
        from twinprobe._notebook import card

        matched, modules = self.alignment.matched_modules[0], self.alignment.modules[0]
        facts = [("target", self.target.path), ("golden", self.golden.path), ("modules", f"{matched:,} of {modules:,}")]
        shown = [(";".join(one.target), ";".join(one.golden), one.rule, f"{one.confidence:.2f}")
                 for one in self.alignment.relations[:8]]  # fmt: skip
        return card("alignment", facts, table=[("target", "golden", "rule", "confidence"), *shown])

    def __repr__(self) -> str:
        matched, modules = self.alignment.matched_modules[0], self.alignment.modules[0]
        return f"<Aligned: {len(self.alignment.relations):,} relations, {matched} of {modules} modules>"


def _numbers(pair: Pair, name: str | None) -> pl.DataFrame:
    frame = pair.evidence.pairs
    columns = [frame[old].alias(new) for old, new in _COLUMNS.items()]
    metrics = pair.evidence.metrics
    if metrics is not None:
        columns += [metrics[name] for name in metrics.columns if metrics[name].dtype == pl.Float64]
    judged = pair.judged
    columns.append(pl.Series("relative_error", judged.error))
    for title, texts in (("verdict", judged.verdict), ("reason", judged.reason), ("origin", judged.origin)):
        columns.append(pl.Series(title, texts, dtype=pl.String))
    if name is not None:
        columns.insert(0, pl.Series("run", [name]).new_from_index(0, frame.height))
    return pl.DataFrame(columns)


def as_path(path: PathLike) -> Path:
    from twinprobe._runs.whole_files import place, remote

    opened: Any = path  # a path of ours where it is a URL, which is no path of this machine
    return opened if remote(opened) is not None else place(os.fspath(path))
