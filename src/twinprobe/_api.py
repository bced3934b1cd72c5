"""What ``import twinprobe`` offers: the commands as functions, with their flags as keywords."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, Literal

from twinprobe._results import Aligned, Comparison, Found, as_path
from twinprobe.errors import BadInput, NothingToCompare

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._compare.logprobs import LogprobComparison
    from twinprobe._compare.merge.job import MergeOutcome
    from twinprobe._compare.one import Comparison as Pair
    from twinprobe._compare.one import Isolate
    from twinprobe._compare.request import Job
    from twinprobe._replay.recorded import Call
    from twinprobe._replay.replay import Replay
    from twinprobe._replay.reproduce import Reproducer
    from twinprobe._runs.run import Run

    PathLike = str | os.PathLike[str]

__all__ = [
    "Aligned", "Comparison", "Found", "align", "check_weights", "compare", "compare_kernels", "compare_logprobs",
    "draw", "find", "merge_results", "open", "record", "replay", "reproduce", "sketch",
]  # fmt: skip

_LONGEST_SUMMARY = 16 << 20


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
    layout: str | Iterable[str] | None = None,
    rounding: float | None = None,
    noise: PathLike | None = None,
    replay: bool | float = False,
    tokens: Literal["auto", "on", "off"] = "auto",
) -> Comparison:
    """Compare two runs (the target is the one under test) and say where they part.

    Each side is a path or URL of a dump.json, of a folder at any depth above it, of a checkpoint or anything else that
    ``open`` takes, a run from ``open``, or a dictionary of arrays. Keywords mean what the flags of ``twinprobe
    compare`` of the same names mean; ``replay`` may be the seconds to spend on it. Everything happens in this process:
    for hundreds of ranks use the command, which spreads them over workers.
    """
    from twinprobe._align.mapping import MappingOptions
    from twinprobe._align.matcher import build_matcher
    from twinprobe._compare.job import compare_job, plan
    from twinprobe._compare.request import Request
    from twinprobe._compare.steps import compare_steps, follow_steps, steps_of
    from twinprobe._judge.rules import Thresholds
    from twinprobe._notebook import Progress
    from twinprobe._runs.watch import watch_files

    mapping = MappingOptions(
        fuzzy=fuzzy_match,
        api=_file_or_flag(api_mapping),
        cell=_file_or_flag(cell_mapping),
        data=None if data_mapping is None else as_path(data_mapping),
        layer=None if layer_mapping is None else as_path(layer_mapping),
        pair=pair,
        align=align,
        alignment=None if alignment is None else as_path(alignment),
    )
    build_matcher(mapping)  # a bad mapping file is met before any dump is opened
    request = Request(
        target=_run_path(target), golden=_run_path(golden), output=Path(),
        thresholds=Thresholds(rounding=rounding), ranks=_numbers_of(rank), steps=_numbers_of(step), mapping=mapping,
        layouts=() if layout is None else (layout,) if isinstance(layout, str) else tuple(layout),
        noise=None if noise is None else as_path(noise), isolate=isolating(replay), tokens=tokens,
    )  # fmt: skip
    if watch_files(request.target) or watch_files(request.golden):
        steps = compare_steps(request.target, request.golden, ranks=request.ranks, steps=request.steps)
        return Comparison({}, [], steps.notes, [], steps)
    jobs, notes, failures = plan(request)
    pairs: dict[str, Pair] = {}
    compared: list[Job] = []
    with Progress() as progress:
        for at, job in enumerate(replace(job, formats=()) for job in jobs):  # files are written by save
            progress.job = at, len(jobs)
            try:
                pairs[job.name or str(job.target)] = compare_job(job, progress)
                compared.append(job)
            except BadInput as error:
                if len(jobs) == 1:
                    raise
                failures.append(str(error))
    if not pairs:
        raise NothingToCompare("no rank could be compared: " + "; ".join(failures), where=request.target)
    results = dict(enumerate(pairs.values()))
    follow_steps(compared, results, compare_job)
    pairs = dict(zip(pairs, results.values(), strict=True))
    failures += [text for pair in pairs.values() for text in pair.summary.lost]
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
    return write_reproducer(*calls, as_path(output_path), shrink=shrink, room=room or ROOM)


def recorded_calls(
    target: PathLike | Run, golden: PathLike | Run | None, call: str, golden_call: str | None
) -> tuple[Call, Call | None]:
    """A call of the target, and its counterpart in golden where there is one."""
    from twinprobe._replay.recorded import find_call, read_calls

    sides: Sequence[PathLike | Run] = [target] if golden is None else [target, golden]
    if golden is None and isinstance(target, str | os.PathLike):
        sides = _compared_paths(as_path(target)) or sides
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
            return [as_path(str(summary[side]["path"])) for side in ("target", "golden")]
    if result.is_dir() and any(result.rglob("compare_result*")):
        hint = "compare with --format json, or name both recordings"
        raise BadInput("holds results that do not name the recordings", where=result, hint=hint)
    return []


def find(
    target: PathLike,
    golden: PathLike,
    *,
    output_path: PathLike = "output",
    rank: int | Iterable[int] | None = None,
    step: int | Iterable[int] | None = None,
    rounding: float | None = None,
    **options: Any,
) -> Found:
    """Find where two programs part: each side is a command line, or a recording in place of one (docs/find.md).

    ``options`` are those of ``twinprobe find`` by their names: steps, from_step, seed (None: keep the programs' own),
    exact, resume. Two recordings are searched for the first call that differs across all ranks, following what ranks
    send each other (``compare -da``); ``rank``, ``step`` and ``rounding`` belong to these.
    """
    from twinprobe._find.programs import is_command
    from twinprobe._report.reports import write_index

    if any(map(is_command, (target, golden))):
        from twinprobe._find.search import PAGE, RESULT, search
        from twinprobe._find.search import Request as SearchRequest

        folder = as_path(output_path)
        found = search(SearchRequest(str(target), str(golden), folder, **options), lambda _line: None)
        files = [folder / name for name in (PAGE, RESULT, *found.files)]
        write_index(folder)
        return Found([found.sentence, *found.stages.values()], files, [], bool(found.agrees))
    if options:
        raise BadInput(f"{next(iter(options))} applies to programs, but these are two recordings")
    from twinprobe._compare.job import analyze
    from twinprobe._compare.request import Request
    from twinprobe._judge.rules import Thresholds

    request = Request(
        target=_run_path(target), golden=_run_path(golden), output=as_path(output_path),
        thresholds=Thresholds(rounding=rounding), ranks=_numbers_of(rank), steps=_numbers_of(step),
    )  # fmt: skip
    outcome = analyze(request, lambda *_: None)
    write_index(request.output)
    agrees = not outcome.failures and all(one.first is None for one in outcome.summaries)
    first = next((one.first for one in outcome.summaries if one.first), None)
    return Found(outcome.findings, outcome.calls + outcome.reports, outcome.failures, agrees, first)


def compare_logprobs(
    target: PathLike,
    golden: PathLike,
    *,
    limit: float = 0.1,
    recordings: tuple[PathLike, PathLike] | None = None,
) -> LogprobComparison:
    """Compare the log-probabilities of the same tokens from two engines, as ``twinprobe llm logprobs`` does."""
    from twinprobe._compare.logprobs import compare_logprobs as compare_scored

    both = None if recordings is None else (as_path(recordings[0]), as_path(recordings[1]))
    return compare_scored(as_path(target), as_path(golden), limit=limit, recordings=both)


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

    where = _kept(path) if isinstance(path, Mapping) else as_path(path)
    if not where.is_dir():
        return open_run(where)
    found = list(_runs_below(where))
    run = open_run(found[0])
    if len(found) > 1:
        run.notes.append(f"{where}: {len(found)} runs are here; {found[0]} was opened")
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
        from twinprobe._live.checks import check_weights as check_recorded

        return check_recorded(_folder(base), _folder(raw), cfg, quiet=quiet)
    golden, target = (_kept(side, weights=True) if isinstance(side, Mapping) else side for side in sides)
    found = compare(target, golden)
    if not quiet:
        print(found.summary)  # noqa: T201  as the other checks do
    return found


def _folder(side: PathLike | Run | Mapping[str, Any]) -> Path:
    if isinstance(side, Mapping):
        raise BadInput("a dictionary of tensors cannot be compared with a recording", hint="give two of the same kind")
    return as_path(side) if isinstance(side, str | os.PathLike) else side.path


def draw(
    target: PathLike,
    golden: PathLike | None = None,
    *,
    output_path: PathLike = "output",
    layer_mapping: PathLike | None = None,
    fuzzy_match: bool = False,
    overflow_check: bool = False,
    pair: Literal["place", "numbers"] = "place",
    align: Literal["auto", "names", "none"] = "auto",
    alignment: PathLike | None = None,
    file_type: Literal["db", "vis", "json", "model_explorer"] = "db",
    layout: str | Iterable[str] | None = None,
    rounding: float | None = None,
) -> list[Path]:
    """Draw the model of one run, or of two compared, for ``twinprobe view`` and TensorBoard; returns the files.

    ``model_explorer`` is a graph for Google's Model Explorer, and node data with the errors of the comparison.
    """
    if file_type == "model_explorer":
        from twinprobe._graph.vis_files import write_model_explorer

        if golden is None:
            return write_model_explorer(open(target), as_path(output_path))
        compared = compare(
            target, golden, layer_mapping=layer_mapping, fuzzy_match=fuzzy_match, pair=pair, align=align,
            alignment=alignment, layout=layout, rounding=rounding,
        )  # fmt: skip
        first = next(iter(compared.pairs.values()))
        return write_model_explorer(first.target, as_path(output_path), first)
    if file_type not in ("db", "vis", "json"):
        raise BadInput(f"file_type is {file_type!r}", hint="db, vis, json or model_explorer")
    from twinprobe._align.mapping import MappingOptions
    from twinprobe._graph.job import GraphRequest, run_request
    from twinprobe._judge.rules import Thresholds
    from twinprobe._report.reports import write_index

    request = GraphRequest(
        target=as_path(target),
        golden=None if golden is None else as_path(golden),
        output=as_path(output_path),
        form=file_type,
        mapping=MappingOptions(
            fuzzy=fuzzy_match, layer=None if layer_mapping is None else as_path(layer_mapping), pair=pair, align=align,
            alignment=None if alignment is None else as_path(alignment),
        ),
        same_ancestors=not fuzzy_match and layer_mapping is None,
        overflow_check=overflow_check,
        sizes=() if layout is None else (layout,) if isinstance(layout, str) else tuple(layout),
        thresholds=Thresholds(rounding=rounding),
    )  # fmt: skip
    files = list(run_request(request, lambda *_: None).files)
    write_index(request.output)
    return files


def record(model: Any, dump_path: PathLike, **options: Any) -> AbstractContextManager[Any]:
    """Record everything that a model computes inside a ``with`` block, in whichever framework it was written.

    ``level``, ``task`` and every other key of config.json may be given; docs/record.md lists them.
    """
    from twinprobe._live.frameworks.adapter import framework_of

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
    from twinprobe._compare.weights import write_sketches

    chosen = [files] if isinstance(files, str | os.PathLike) else list(files)
    write_sketches([as_path(one) for one in chosen], as_path(output))
    return as_path(output)


def merge_results(input_dir: PathLike, output_dir: PathLike, config: PathLike) -> MergeOutcome:
    """Gather chosen calls of all ranks in one workbook, as ``twinprobe merge_result`` does."""
    from twinprobe._compare.merge.job import merge_results as merge

    return merge(as_path(input_dir), as_path(output_dir), as_path(config))


def compare_kernels(
    target: PathLike,
    golden: PathLike,
    *,
    rank: int | Iterable[int] | None = None,
    step: int | Iterable[int] | None = None,
) -> Iterator[tuple[int, int, pl.DataFrame, dict[str, int]]]:
    """Compare kernel dumps of static graphs: (rank, step, result table, counts of verdicts), one after the other."""
    from twinprobe._compare.kernel import compare_kernel_pair, pair_kernels

    pairs, _ = pair_kernels(as_path(target), as_path(golden), ranks=_numbers_of(rank), steps=_numbers_of(step))
    for pair in pairs:
        table, summary = compare_kernel_pair(pair)
        yield pair.rank, pair.step, table, summary.verdicts


def _file_or_flag(value: PathLike | Literal[True] | None) -> Path | Literal[True] | None:
    return value if value is None or value is True else as_path(value)


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
    from twinprobe._runs.watch import watch_files

    path = as_path(side)
    if not path.is_dir() or watch_files(path):
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
