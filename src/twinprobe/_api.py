"""What ``import twinprobe`` offers: the commands as functions, with their flags as keywords."""

from __future__ import annotations

import atexit
import os
import webbrowser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Literal

from twinprobe.errors import BadInput, NothingToCompare

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._align.auto.alignment import Alignment
    from twinprobe._compare.merge.job import MergeOutcome
    from twinprobe._compare.one import Comparison as Pair
    from twinprobe._compare.one import Isolate
    from twinprobe._compare.request import Job
    from twinprobe._judge.origin import Divergence
    from twinprobe._judge.steps import StepsComparison
    from twinprobe._replay.recorded import Call
    from twinprobe._replay.replay import Replay
    from twinprobe._replay.reproduce import Reproducer
    from twinprobe._runs.run import Run

    PathLike = str | os.PathLike[str]

__all__ = [
    "Aligned", "Comparison", "Found", "align", "check_weights", "compare", "compare_kernels", "draw", "find",
    "merge_results", "open", "record", "replay", "reproduce", "sketch",
]  # fmt: skip

_VERDICTS = ("pass", "warning", "error")
_LONGEST_SUMMARY = 16 << 20
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
        from rich.console import Console

        from twinprobe._report.console import print_summary

        console = Console(width=120, no_color=True, force_terminal=False, highlight=False)
        with console.capture() as captured:
            for pair in self.pairs.values():
                print_summary(pair.summary, console)
        begin = [] if self.steps is None else [self.steps.parting.sentence]
        return "\n".join([*begin, captured.get().rstrip(), *self.failures, *self.notes]).strip()

    @property
    def table(self) -> pl.DataFrame:
        """One row for each pair of recorded values, as numbers; ``verdict``, ``reason`` and ``origin`` in words.

        ``to_pandas()`` and ``to_arrow()`` turn it into other frames. The files that ``save`` writes hold the columns
        of the command instead. Of watched runs, one row for each step.
        """
        import polars as pl

        if not self.pairs and self.steps is not None:
            from twinprobe._report.overview import steps_table

            return steps_table(self.steps)
        return pl.concat([_numbers(pair, name if len(self.pairs) > 1 else None) for name, pair in self.pairs.items()])

    def save(self, folder: PathLike, formats: str | Iterable[str] = ("xlsx",)) -> list[Path]:
        """Write the result files of the command, for each rank, and return their paths."""
        from twinprobe._report.files import own_timestamp, prepare_folder, result_stem, timestamp_now
        from twinprobe._report.tables import write_reports

        root, wanted = _path(folder), [formats] if isinstance(formats, str) else list(formats)
        prepare_folder(root)
        files: list[Path] = []
        with own_timestamp(root, timestamp_now()) as stamp:
            for job, pair in zip(self._jobs, self.pairs.values(), strict=True):
                stem = result_stem(stamp, job.label, debug=pair.target.single_points)
                where = root / job.key.subfolder
                prepare_folder(where)
                files += write_reports(pair.table(), pair.summary, where, stem, wanted)
            if self.steps is not None:
                from twinprobe._report.overview import write_steps

                files += write_steps(self.steps, root, stamp, wanted)
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
        from twinprobe._runs.notebook import card

        verdicts = ", ".join(f"{int(count):,} {name}" for name, count in self.metrics.items() if name in _VERDICTS)
        facts: list[tuple[str, object]] = [("verdicts", verdicts)]
        first, table = self.first, []
        if first is not None:
            facts += [
                ("first divergence", first.op),
                ("why", first.sentence),
                ("line", first.stack_line or "not recorded"),
            ]
            names = dict.fromkeys([*first.target_values, *first.golden_values])
            table = [("", "target", "golden")]
            table += [(name, first.target_values.get(name, ""), first.golden_values.get(name, "")) for name in names]
        facts += [("not compared", failure) for failure in self.failures[:3]]
        return card("the runs agree" if self else "the runs differ", facts, good=self.agrees, table=table)

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


def compare(
    target: PathLike | Run | Mapping[str, Any],
    golden: PathLike | Run | Mapping[str, Any],
    *,
    rank: int | Iterable[int] | None = None,
    step: int | Iterable[int] | None = None,
    fuzzy_match: bool = False,
    api_mapping: PathLike | Literal[True] | None = None,
    cell_mapping: PathLike | Literal[True] | None = None,
    data_mapping: PathLike | None = None,
    layer_mapping: PathLike | None = None,
    alignment: PathLike | None = None,
    pair: Literal["place", "numbers"] = "place",
    align: Literal["auto", "names", "none"] = "auto",
    rounding: float | None = None,
    replay: bool | float = False,
) -> Comparison:
    """Compare two runs (the target is the one under test) and say where they part.

    Each side is a path or URL of a dump.json, of a folder at any depth above it, of a checkpoint or anything else that
    ``open`` takes, a run from ``open``, or a dictionary of arrays. Keywords mean what the flags of ``twinprobe
    compare`` of the same names mean; ``replay`` may be the seconds to spend on it. Everything happens in this process:
    for hundreds of ranks use the command, which spreads them over workers.
    """
    from twinprobe._align.matcher import MappingOptions, build_matcher
    from twinprobe._compare.job import compare_job, plan
    from twinprobe._compare.request import Request
    from twinprobe._compare.steps import compare_steps, steps_of
    from twinprobe._judge.verdicts import Thresholds
    from twinprobe._report.files import timestamp_now
    from twinprobe._runs.watch import is_watched

    mapping = MappingOptions(
        fuzzy=fuzzy_match,
        api=_file_or_flag(api_mapping),
        cell=_file_or_flag(cell_mapping),
        data=None if data_mapping is None else _path(data_mapping),
        layer=None if layer_mapping is None else _path(layer_mapping),
        pair=pair,
        align=align,
        alignment=None if alignment is None else _path(alignment),
    )
    build_matcher(mapping)  # a bad mapping file is met before any dump is opened
    request = Request(
        target=_run_path(target), golden=_run_path(golden), output=Path(), timestamp=timestamp_now(),
        thresholds=Thresholds(rounding=rounding), ranks=_numbers_of(rank), steps=_numbers_of(step), mapping=mapping,
        isolate=isolating(replay),
    )  # fmt: skip
    if is_watched(request.target) or is_watched(request.golden):
        steps = compare_steps(request.target, request.golden, ranks=request.ranks, steps=request.steps)
        return Comparison({}, [], steps.notes, [], steps)
    jobs, notes, failures = plan(request)
    pairs: dict[str, Pair] = {}
    compared: list[Job] = []
    for job in (replace(job, formats=()) for job in jobs):  # files are written by save
        try:
            pairs[job.name or str(job.target)] = compare_job(job)
            compared.append(job)
        except BadInput as error:
            if len(jobs) == 1:
                raise
            failures.append(str(error))
    if not pairs:
        raise NothingToCompare("no rank could be compared: " + "; ".join(failures), where=request.target)
    firsts = [(job, pair.summary.first) for job, pair in zip(compared, pairs.values(), strict=True)]
    return Comparison(pairs, failures, notes, compared, steps_of(request, firsts, notes))


def isolating(replay: bool | float, room: int | None = None) -> Isolate | None:
    """How a comparison runs its suspects again; None where that was not asked for."""
    if replay is False:
        return None
    from twinprobe._replay.recorded import ROOM
    from twinprobe._replay.replay import SECONDS, isolate

    return partial(isolate, seconds=SECONDS if replay is True else float(replay), room=room or ROOM)


def replay(
    target: PathLike | Run,
    golden: PathLike | Run | None = None,
    *,
    call: str,
    golden_call: str | None = None,
    room: int | None = None,
) -> Replay:
    """Run one recorded call again from its own arguments: is it off by itself, and on which side?

    Needs the tensors of the call (task tensor). ``target`` alone may be the folder of a ``compare``'s result, whose
    summary names both recordings. ``room``: the most bytes of memory that it may take.
    """
    from twinprobe._replay.functions import devices_here
    from twinprobe._replay.recorded import ROOM
    from twinprobe._replay.replay import replay_pair

    calls = recorded_calls(target, golden, call, golden_call)
    return replay_pair(*calls, room=room or ROOM, devices=devices_here())


def reproduce(
    target: PathLike | Run,
    golden: PathLike | Run | None = None,
    *,
    call: str,
    output_path: PathLike,
    golden_call: str | None = None,
    shrink: bool = False,
    room: int | None = None,
) -> Reproducer:
    """Write a folder that shows one call's fault without TwinProbe: inputs, a short script, a README.

    ``shrink`` cuts the inputs down to the smallest slice that still shows it.
    """
    from twinprobe._replay.recorded import ROOM
    from twinprobe._replay.reproduce import write_reproducer

    calls = recorded_calls(target, golden, call, golden_call)
    return write_reproducer(*calls, _path(output_path), shrink=shrink, room=room or ROOM)


def recorded_calls(
    target: PathLike | Run, golden: PathLike | Run | None, call: str, golden_call: str | None
) -> tuple[Call, Call | None]:
    """A call of the target, and its counterpart in golden where there is one."""
    from twinprobe._replay.recorded import find_call, read_calls

    sides: Sequence[PathLike | Run] = [target] if golden is None else [target, golden]
    if golden is None and isinstance(target, str | os.PathLike):
        sides = _compared_paths(_path(target)) or sides
    runs = [open(side) if isinstance(side, str | os.PathLike) else side for side in sides]
    name = find_call(runs[0], call)
    found = read_calls(runs[0], [name])[name]
    if len(runs) == 1:
        return found, None
    other = golden_call
    if other is None and name in runs[1].ops:
        other = name
    elif other is None:
        other = _counterpart(runs[0], runs[1], name)
    other = find_call(runs[1], other)
    return found, read_calls(runs[1], [other])[other]


def _counterpart(target: Run, golden: Run, name: str) -> str:
    """The golden call that a comparison pairs with this one."""
    pairs = next(iter(compare(target, golden).pairs.values())).evidence.pairs
    ops = pairs.filter(pairs["t_op"] == target.ops.index(name))["g_op"].drop_nulls().to_list()
    if not ops:
        raise BadInput(f"{name} has no counterpart in {golden.path}", where=target.path, hint="name it: --golden-call")
    return golden.ops[int(ops[0])]


def _compared_paths(result: Path) -> list[Path]:
    """The two recordings that a json result of compare names, or the newest in this folder; none where none does."""
    import msgspec

    files = sorted(result.rglob("compare_result*.json")) if result.is_dir() else [result]
    for file in reversed([file for file in files if file.suffix == ".json" and file.is_file()]):
        with file.open("rb") as content:
            first = content.readline(_LONGEST_SUMMARY).rstrip(b",\n")  # the summary; the rows follow on later lines
        with suppress(msgspec.DecodeError, KeyError, TypeError):
            summary = msgspec.json.decode(first + b"}")["summary"]
            return [_path(str(summary[side]["path"])) for side in ("target", "golden")]
    if result.is_dir() and any(result.rglob("compare_result*")):
        hint = "compare with --format json, or name both recordings"
        raise BadInput("holds results that do not say which recordings were compared", where=result, hint=hint)
    return []


@dataclass
class Found:
    """Where the difference began, on which ranks: a sentence each, and the files that tell more."""

    findings: list[str]
    files: list[Path]
    failures: list[str]
    agrees: bool

    def __bool__(self) -> bool:
        return self.agrees


def find(
    target: PathLike,
    golden: PathLike,
    *,
    output_path: PathLike = "output",
    rank: int | Iterable[int] | None = None,
    step: int | Iterable[int] | None = None,
    rounding: float = 64.0,
    **options: Any,
) -> Found:
    """Find where two programs part: each side is a command line, or a recording in place of one (docs/find.md).

    ``options`` are those of ``twinprobe find`` by their names: steps, from_step, seed (None: keep the programs' own),
    exact, resume. Two recordings are searched for the first call that differs across all ranks, following what ranks
    send each other (``compare -da``); ``rank``, ``step`` and ``rounding`` belong to these.
    """
    from twinprobe._find.programs import is_command

    if any(map(is_command, (target, golden))):
        from twinprobe._find.hunt import PAGE, RESULT, hunt
        from twinprobe._find.hunt import Request as Hunt

        folder = _path(output_path)
        found = hunt(Hunt(str(target), str(golden), folder, **options), lambda _line: None)
        files = [folder / name for name in (PAGE, RESULT, *found.files)]
        return Found([found.sentence, *found.stages.values()], files, [], bool(found.agrees))
    if options:
        raise BadInput(f"{next(iter(options))} belongs to a search over programs, and these are two recordings")
    from twinprobe._compare.job import analyze
    from twinprobe._compare.request import Request
    from twinprobe._judge.verdicts import Thresholds
    from twinprobe._report.files import timestamp_now

    request = Request(
        target=_run_path(target), golden=_run_path(golden), output=_path(output_path), timestamp=timestamp_now(),
        thresholds=Thresholds(rounding=rounding), ranks=_numbers_of(rank), steps=_numbers_of(step),
    )  # fmt: skip
    outcome = analyze(request, lambda *_: None)
    agrees = not outcome.failures and all(one.first is None for one in outcome.summaries)
    return Found(outcome.findings, outcome.calls + outcome.reports, outcome.failures, agrees)


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
        import polars as pl

        rows = [(list(one.target), list(one.golden), one.rule, one.confidence) for one in self.alignment.relations]
        names = pl.List(pl.String)
        schema: dict[str, Any] = {"target": names, "golden": names, "rule": pl.String, "confidence": pl.Float64}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def save(self, folder: PathLike) -> list[Path]:
        """Write alignment.json, the mapping files and alignment.html, and return their paths."""
        from twinprobe._report.alignment import write_alignment

        return write_alignment(self.alignment, self.target, self.golden, _path(folder))

    def _repr_html_(self) -> str:
        from twinprobe._runs.notebook import card

        matched, modules = self.alignment.matched_modules[0], self.alignment.modules[0]
        facts = [("target", self.target.path), ("golden", self.golden.path), ("modules", f"{matched:,} of {modules:,}")]
        shown = [(";".join(one.target), ";".join(one.golden), one.rule, f"{one.confidence:.2f}")
                 for one in self.alignment.relations[:8]]  # fmt: skip
        return card("alignment", facts, table=[("target", "golden", "rule", "confidence"), *shown])

    def __repr__(self) -> str:
        matched, modules = self.alignment.matched_modules[0], self.alignment.modules[0]
        return f"<Aligned: {len(self.alignment.relations):,} relations, {matched} of {modules} modules>"


def align(target: PathLike | Run, golden: PathLike | Run) -> Aligned:
    """Find out how two models fit together, without a mapping file. A folder stands for the first run in it."""
    from twinprobe._align.auto.aligner import align_runs

    runs = [open(side) if isinstance(side, str | os.PathLike) else side for side in (target, golden)]
    return Aligned(align_runs(*runs), *runs)


def open(path: PathLike | Mapping[str, Any]) -> Run:
    """Open a recorded run: a dump.json or a folder at any depth above it (its first step and rank).

    Also a checkpoint, a folder of arrays, another tool's dump (docs/formats.md), or a dictionary of arrays. Nothing but
    the index is read: ``table`` holds one row for each recorded value, tensors stay in their files.
    """
    from twinprobe._runs.run import open_run

    where = _kept(path) if isinstance(path, Mapping) else _path(path)
    if not where.is_dir():
        return open_run(where)
    found = list(_runs_below(where))
    run = open_run(found[0])
    if len(found) > 1:
        run.notes.append(f"{where}: {len(found)} runs lie here; {found[0]} is the one that was opened")
    return run


def check_weights(
    base: PathLike | Run | Mapping[str, Any],
    raw: PathLike | Run | Mapping[str, Any],
    cfg: Mapping[str, Any] | None = None,
    *,
    quiet: bool = False,
) -> Any:
    """Compare weights: two checkpoints or dictionaries of tensors (base is the reference), or two recordings.

    Tensors of other names and layouts are paired by what they hold: renamed, transposed, fused, exchanged, cast.
    """
    from twinprobe._runs.tensors.foreign import is_weights

    sides = [side if isinstance(side, Mapping) else _run_path(side) for side in (base, raw)]
    if any(isinstance(side, Path) and not is_weights(side) for side in sides):
        from twinprobe._live.differ import check_weights as check_recorded

        return check_recorded(_folder(base), _folder(raw), cfg, quiet=quiet)
    golden, target = (_kept(side, weights=True) if isinstance(side, Mapping) else side for side in sides)
    found = compare(target, golden)
    if not quiet:
        print(found.summary)  # noqa: T201  as the other checks do
    return found


def _folder(side: PathLike | Run | Mapping[str, Any]) -> Path:
    if isinstance(side, Mapping):
        raise BadInput("a dictionary of tensors cannot be compared with a recording", hint="give two of a kind")
    return _path(side) if isinstance(side, str | os.PathLike) else side.path


def draw(
    target: PathLike,
    golden: PathLike | None = None,
    *,
    output_path: PathLike = "output",
    file_type: Literal["db", "text", "model_explorer"] = "db",
    overflow_check: bool = False,
) -> list[Path]:
    """Draw the model of one run, or of two compared, for ``twinprobe view`` and TensorBoard; returns the files.

    ``model_explorer`` is a graph for Google's Model Explorer, and node data with the errors of the comparison.
    """
    if file_type == "model_explorer":
        from twinprobe._graph.model_explorer import write_model_explorer

        if golden is None:
            return write_model_explorer(open(target), _path(output_path))
        pair = next(iter(compare(target, golden).pairs.values()))
        return write_model_explorer(pair.target, _path(output_path), pair)
    from twinprobe._graph.draw_place import GraphRequest
    from twinprobe._graph.job import run_request
    from twinprobe._report.files import timestamp_now

    request = GraphRequest(
        target=_path(target),
        golden=None if golden is None else _path(golden),
        output=_path(output_path),
        form=file_type,
        timestamp=timestamp_now(),
        overflow_check=overflow_check,
    )
    return list(run_request(request, lambda *_: None).files)


def record(model: Any, dump_path: PathLike, **options: Any) -> AbstractContextManager[Any]:
    """Record everything that a model computes inside a ``with`` block, in whichever framework it was written.

    ``level``, ``task`` and every other key of config.json may be given; docs/record.md lists them.
    """
    from twinprobe._live.frameworks import framework_of

    name = framework_of(model[0] if isinstance(model, list | tuple) and model else model)
    if name is None:
        raise BadInput(
            f"{type(model).__name__} is not a model",
            hint="expected a torch.nn.Module, paddle.nn.Layer or mindspore.nn.Cell",
        )
    found: AbstractContextManager[Any] = import_module(f"twinprobe.{name}").record(model, dump_path, **options)
    return found


def sketch(files: PathLike | Iterable[PathLike], output: PathLike) -> Path:
    """Write the sketches of all tensors of checkpoints and arrays (safetensors, npz, npy, pt) to one small file.

    ``compare`` takes it in place of the tensors themselves: two sites compare weights by exchanging kilobytes.
    """
    from twinprobe._compare.sketch_files import write_sketches

    chosen = [files] if isinstance(files, str | os.PathLike) else list(files)
    write_sketches([_path(one) for one in chosen], _path(output))
    return _path(output)


def merge_results(input_dir: PathLike, output_dir: PathLike, config: PathLike) -> MergeOutcome:
    """Gather chosen calls of all ranks in one workbook, as ``twinprobe merge_result`` does."""
    from twinprobe._compare.merge.job import merge_results as merge

    return merge(_path(input_dir), _path(output_dir), _path(config))


def compare_kernels(
    target: PathLike,
    golden: PathLike,
    *,
    rank: int | Iterable[int] | None = None,
    step: int | Iterable[int] | None = None,
) -> Iterator[tuple[int, int, pl.DataFrame, dict[str, int]]]:
    """Compare kernel dumps of static graphs: (rank, step, result table, counts of verdicts), one after the other."""
    from twinprobe._compare.kernel import compare_kernel_pair, pair_kernels

    pairs, _ = pair_kernels(_path(target), _path(golden), ranks=_numbers_of(rank), steps=_numbers_of(step))
    for pair in pairs:
        table, summary = compare_kernel_pair(pair)
        yield pair.rank, pair.step, table, summary.verdicts


def _path(path: PathLike) -> Path:
    from twinprobe._runs.places import place, remote

    opened: Any = path  # a path of ours where it is a URL, which is no path of this machine
    return opened if remote(opened) is not None else place(os.fspath(path))


def _file_or_flag(value: PathLike | Literal[True] | None) -> Path | Literal[True] | None:
    return value if value is None or value is True else _path(value)


def _kept(arrays: Mapping[str, Any], *, weights: bool = False) -> Path:
    """The temporary file of a dictionary of arrays, which goes when Python ends."""
    from twinprobe._runs.tensors.foreign import keep_arrays

    path = keep_arrays(arrays, weights=weights)
    atexit.register(rmtree, path.parent, ignore_errors=True)
    return path


def _run_path(side: PathLike | Run | Mapping[str, Any]) -> Path:
    """Where a side lies. Folders with steps and ranks are paired as the command pairs them; deeper ones are found."""
    if isinstance(side, Mapping):
        return _kept(side)
    if not isinstance(side, str | os.PathLike):
        return side.path
    from twinprobe._runs.watch import is_watched

    path = _path(side)
    if not path.is_dir() or is_watched(path):
        return path
    from twinprobe._runs.run import find_run

    found = list(_runs_below(path))
    return find_run(found[0]) if len(found) == 1 else path


def _runs_below(folder: Path) -> Iterator[Path]:
    """The runs in a folder, in the order of steps and ranks; of a folder above them, at any depth."""
    from twinprobe._runs.other_tools import is_foreign
    from twinprobe._runs.run import RUN_FILES, run_folders

    if any((folder / name).is_file() for name in RUN_FILES):
        yield folder
        return
    try:
        yield from (found.path for found in run_folders(folder))
    except BadInput:
        if is_foreign(folder):
            yield folder
            return
        inner = sorted(entry for entry in folder.iterdir() if entry.is_dir())
        if len(inner) != 1:  # nothing, or nobody can say which
            raise
        yield from _runs_below(inner[0])


def _numbers_of(chosen: int | Iterable[int] | None) -> frozenset[int] | None:
    if chosen is None:
        return None
    return frozenset({chosen} if isinstance(chosen, int) else chosen)


def _numbers(pair: Pair, name: str | None) -> pl.DataFrame:
    import polars as pl

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
