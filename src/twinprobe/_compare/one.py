"""Compare one run with another: the whole path from two runs to a judged table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twinprobe._align.calls import MINDSPORE, dims, epsilons
from twinprobe._align.links import Pairs
from twinprobe._align.matcher import match_names
from twinprobe._compare.pair_table import pair_table
from twinprobe._judge.deviation import (
    ADAPTIVE_RATE,
    ONE_PROCESS,
    PRODUCT_PRECISION,
    ROUNDING,
    Deviation,
    bools,
    product_types,
)
from twinprobe._judge.operations import EIGHT_BITS, HIDDEN_PRECISION, ROUGH_EXP, hidden_precision
from twinprobe._judge.results import PARAMETER_GRADIENTS
from twinprobe._judge.rules import Thresholds
from twinprobe._judge.search import PARAMETER_DIFFERS
from twinprobe._judge.summary import RunInfo, Summary
from twinprobe._runs.names import IN_OPTIMIZER, LAYERS
from twinprobe._runs.run import (
    DIGESTS,
    OPTIMIZER_FILE,
    RUN_FILES,
    STATISTICS,
    TENSORS,
    WHOLE,
    Run,
    find_run,
    hand_over,
    open_run,
    take_over,
)
from twinprobe._runs.sketches import SUFFIX
from twinprobe._runs.table import ATTENTION_MASK, GRADIENT, STATS
from twinprobe._runs.whole_files import remote
from twinprobe._scale.process import ForkedFile, can_fork
from twinprobe.errors import BadInput, NothingRecorded, NothingToCompare, TwinProbeError

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from twinprobe._judge.deviation import Isolated
    from twinprobe._judge.verdicts import Evidence, Judged
    from twinprobe._report.tokens import TokenFindings
    from twinprobe._runs.tensors.tensor_files import Loader

# Reading both runs at once, each on its own core, where they are large enough to be worth it.

_IN_EIGHT_BITS = "a run computes its products with integers of 8 bits: each may be off by some per cent"
_MOST_OTHERS = 4  # further beginnings that are described
_LARGE = 2 << 20  # bytes of a dump.json from which a second process pays
_EXCHANGED, _SAME_SUMS = 1e-3, 1e-7  # relative errors
_UNLIKELY = 0.05  # of what a statistic moves by when values move at random


def open_both(target: Path, golden: Path) -> tuple[Run, Run]:
    """Read two runs; the order of errors is as if one were read after the other.

    Where one side is a file of sketches and the other one of tensors, these are sketched first.
    """
    if (target.suffix == SUFFIX) != (golden.suffix == SUFFIX):
        from twinprobe._compare.weights import KNOWN, sketched

        runs = [sketched(path) if path.suffix.lower() in KNOWN else open_run(path) for path in (target, golden)]
        return runs[0], runs[1]
    if not worth_two(target, golden):
        return _open_first(target, golden), open_run(golden)
    with ForkedFile(lambda file: hand_over(open_run(golden), file)) as other:
        first = open_run(target)
        read = other.result()
        return first, take_over(read) if read else open_run(golden)


def _open_first(target: Path, golden: Path) -> Run:
    """Read the target; where it holds nothing, see whether the golden run does."""
    try:
        return open_run(target)
    except NothingToCompare as empty:
        try:
            open_run(golden)
        except NothingToCompare:
            raise NothingRecorded(empty.what, where=empty.where) from empty
        raise


def worth_two(target: Path, golden: Path) -> bool:
    """Whether a second process for the second run pays, and may be started here."""
    return _is_large(target) and _is_large(golden) and can_fork()


def _is_large(path: Path) -> bool:
    if remote(path) is not None or not path.exists():
        return False
    file = find_run(path)
    return file.name in RUN_FILES and file.stat().st_size >= _LARGE


Matcher = Callable[[Run, Run], Pairs]
Measurer = Callable[[Run, Run, "pl.DataFrame", Callable[[int, int], None]], "pl.DataFrame"]
Isolate = Callable[[Run, Run, "Evidence", "Judged"], "Isolated"]
Reorder = Callable[[Run, Run, "pl.DataFrame", "pl.DataFrame"], "dict[int, tuple[str, str]]"]


def silent(_done: int, _total: int) -> None:
    """No progress is shown."""


@dataclass
class Options:
    """How two runs are compared."""

    match: Matcher = match_names
    thresholds: Thresholds = field(default_factory=Thresholds)
    progress: Callable[[int, int], None] = silent
    measure: Measurer | None = None
    """How tensors are measured, if not here and at once."""
    noise: Path | None = None
    """A third run that shows how far healthy runs of the golden program are apart."""
    isolate: Isolate | None = None
    """How suspects are run again from their own inputs: given from above, since only that room imports a framework."""
    before: tuple[Path, Path] | None = None
    """Both runs of the step before, which agree: parameters may be as far apart as these left them."""
    agreed: frozenset[tuple[object, ...]] = frozenset()
    """Statistics on both sides of values that were judged before, with all that they were made of, and agree."""
    reorder: Reorder | None = None
    """Which tensors are to be read in another order, once they are measured: pieces that ranks hold."""


@dataclass
class Comparison:
    """Two runs, compared: the typed pair table, the verdicts, the table people read, and the summary."""

    target: Run
    golden: Run
    evidence: Evidence
    judged: Judged
    summary: Summary
    tokens: TokenFindings | None = None
    """What is known of single tokens, where the runs were compared by them."""

    def table(self) -> pl.DataFrame:
        """The result table, every old column in its place."""
        from twinprobe._report.tables import result_table

        return result_table(self.target, self.evidence, self.judged)


def compare_paths(target: Path, golden: Path, options: Options | None = None) -> Comparison:
    """Compare two dump.json (or two debug.json) files."""
    return compare_runs(*open_both(target, golden), options)


def compare_runs(target: Run, golden: Run, options: Options | None = None) -> Comparison:
    """Pair, measure and judge two runs."""
    from twinprobe._judge.verdicts import judge

    options = options or Options()
    mode = common_mode(target, golden)
    match = options.match
    if target.content is not None and golden.content is not None and target.content.weights and golden.content.weights:
        from twinprobe._compare.weights import match_weights as match
    pairs = match(target, golden)
    evidence = _measure(mode, target, golden, pair_table(target, golden, pairs), options)
    evidence.other_layout = target.arrangement != golden.arrangement
    left = _known_noise(target, golden, evidence, options)
    one_alone = target.framework != golden.framework and MINDSPORE in (target.framework, golden.framework)
    target.settings |= {HIDDEN_PRECISION: hidden_precision(target, golden), ROUGH_EXP: one_alone}
    judged, padded = judge(target, evidence, options.thresholds), ""
    if judged.first_row is not None and evidence.pairs["t_name"].str.contains(ATTENTION_MASK).any():
        evidence, judged, padded = _without_padding(target, golden, evidence, judged, options)
    if options.isolate is not None:
        evidence.isolated = options.isolate(target, golden, evidence, judged)
        judged = judge(target, evidence, options.thresholds)
    summary = _summarise(target, golden, evidence, judged, pairs)
    first = summary.first
    if target.step > 0 and first is not None and first.begins == PARAMETER_DIFFERS and not target.arrangement:
        from twinprobe._compare.updates import rate_of_noise

        rate = rate_of_noise([run.path.parent / OPTIMIZER_FILE for run in (target, golden)])
        if rate:  # modules alone do not show what the step before made of noise
            target.settings |= {ADAPTIVE_RATE: rate, ONE_PROCESS: 1}
            judged = judge(target, evidence, options.thresholds)
            summary = _summarise(target, golden, evidence, judged, pairs)
            first = summary.first
    if left.any():
        worst = float(np.nanmax(evidence.deviation.error[left]))
        note = f"step {target.step} begins with parameters as far apart as the step before, which agrees, left them"
        summary = replace(summary, notes=[*summary.notes, f"{note} (worst {100 * worst:.2g}%)"])
    if padded and first is not None and judged.first_row is not None and evidence.partly is None:
        kinds = [{"name": "padding", "sentence": padded, "confidence": 0.9}, *first.kinds]
        summary = replace(summary, first=replace(first, sentence=f"{first.sentence}; {padded}", kinds=kinds))
    elif padded:
        summary = replace(summary, notes=[*summary.notes, padded])
    summary = _with_updates(summary, target, golden, evidence.pairs, judged, options)
    first = summary.first
    if (first is None or first.module == IN_OPTIMIZER) and LAYERS in target.settings and LAYERS in golden.settings:
        from twinprobe._judge.kinds.by_settings import with_settings

        summary = with_settings(summary, target, golden, evidence.pairs)
    return Comparison(target, golden, evidence, judged, summary)


def _known_noise(target: Run, golden: Run, evidence: Evidence, options: Options) -> NDArray[np.bool_]:
    """Keep what is known of the noise by row: of a third run, of values that were judged before. And the rows of
    parameters that differ as the step before left them."""
    if options.noise is not None:
        evidence.noise = _measured_noise(open_run(options.noise), golden, evidence.pairs, options)
    left = np.zeros(0, dtype=bool) if options.before is None else _left_before(target, golden, evidence, options)
    known = [values in options.agreed for values in _values(evidence.pairs)] if options.agreed else left
    if np.any(known):
        before = np.nan if evidence.noise is None else evidence.noise
        evidence.noise = np.fmax(np.where(known, evidence.deviation.error, np.nan), before)
    return left


def _without_padding(
    target: Run, golden: Run, evidence: Evidence, judged: Judged, options: Options
) -> tuple[Evidence, Judged, str]:
    """Where the runs part, judge them again by the tokens that their attention masks show, and say what came of it."""
    from twinprobe._judge.kinds.by_padding import Kept, without_padding

    kept = None
    if evidence.metrics is not None:
        folders = target.tensor_folder, golden.tensor_folder
        kept = Kept(partial(_jobs, *folders, evidence.pairs), partial(file_metrics, *folders, progress=silent))
    if target.arrangement or golden.arrangement or (kept is not None and options.measure is not None):
        return evidence, judged, ""
    return without_padding(target, golden, evidence, judged, options.thresholds, kept) or (evidence, judged, "")


def _left_before(target: Run, golden: Run, evidence: Evidence, options: Options) -> NDArray[np.bool_]:
    """Rows of parameters that differ as the optimizers of the step before left them."""
    from twinprobe._compare.updates import parameter_matcher, written_values

    assert options.before is not None
    files = [run.parent / OPTIMIZER_FILE for run in options.before]
    if not all(file.is_file() for file in files):
        return np.zeros(0, dtype=bool)
    pairs = evidence.pairs
    try:
        written = written_values(open_both(files[0], files[1]), parameter_matcher(target, golden, pairs))
    except TwinProbeError:
        return np.zeros(0, dtype=bool)
    apart = np.nan_to_num(evidence.deviation.error) > 0
    left = np.array([values in written for values in _values(pairs)], dtype=bool)
    left &= apart & ~evidence.deviation.nonfinite
    left[left] = ~_in_another_order(pairs.filter(left), evidence.deviation.error[left])
    return left


def _values(pairs: pl.DataFrame) -> Iterator[tuple[object, ...]]:
    """The statistics of each row on both sides."""
    return zip(*(pairs[f"{side}_{stat}"] for side in "tg" for stat in STATS), strict=True)


def _in_another_order(pairs: pl.DataFrame, error: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Parameters with golden's values in other places: somebody has exchanged them since. An optimizer moves values,
    and with them max and min by about the error of an element, and mean and norm by the root of their number less."""
    target, golden = (np.array([pairs[f"{side}_{stat}"] for stat in STATS], dtype=np.float64) for side in "tg")
    root = np.sqrt([max(1, prod(dims(shape) or ())) for shape in pairs["g_shape"]])
    moved = error * golden[3] / root
    likely = np.array([moved, moved, moved / root, moved])
    largest = np.abs(golden[:2]).max(axis=0)
    rounding = _SAME_SUMS * np.array([largest, largest, largest, golden[3]])
    near = np.abs(target - golden) <= _UNLIKELY * likely + rounding
    return np.logical_and(near.all(axis=0), error > _EXCHANGED)


def not_compared(folder: Path) -> str:
    """What is said where one run alone recorded what its optimizer saw."""
    return f"no {OPTIMIZER_FILE} in {folder}: updates and settings were not compared"


def _with_updates(
    summary: Summary, target: Run, golden: Run, pairs: pl.DataFrame, judged: Judged, options: Options
) -> Summary:
    """Add what the optimizers of both runs read and wrote, as their optimizer.json files say."""
    files = [run.path.parent / OPTIMIZER_FILE for run in (target, golden)]
    known = [file.is_file() for file in files]
    if not any(known):
        return summary
    from twinprobe._compare.updates import (
        add_little,
        by_framework,
        join_updates,
        parameter_matcher,
        settings_without_effect,
    )

    if not all(known):
        ranks = bool(target.arrangement or golden.arrangement)  # then updates are compared on their own
        gradients = any(result.name == PARAMETER_GRADIENTS for result in summary.results)
        note = not_compared(files[known.index(False)].parent)
        return replace(summary, notes=[*summary.notes, note]) if gradients and not ranks else summary
    if options.thresholds.rounding is not None or options.thresholds.by_row or add_little(summary, target, golden):
        return summary
    try:
        match = parameter_matcher(target, golden, pairs)
        updates = open_both(files[0], files[1])
        # Gradients come from matrix products, and are as far off as these round, whatever type an optimizer reads.
        types = [product_types(run.table["name"], run.table["dtype"]) for run in (target, golden)]
        precision = max(epsilons(chain(*types)).values(), default=0.0)
        updates[0].settings[PRODUCT_PRECISION] = max(precision, target.settings[HIDDEN_PRECISION])
        # A gradient that an optimizer reads as the backward pass has made it was judged there, with its summands.
        passed = bools(pairs["t_role"] == GRADIENT) & (judged.state == ROUNDING)
        agreed = frozenset(_values(pairs.filter(passed))) if summary.first is None else frozenset()
        compared = compare_runs(*updates, Options(match, options.thresholds, agreed=agreed))
    except TwinProbeError as error:
        return replace(summary, notes=[*summary.notes, f"what optimizers did was not compared: {error}"])
    joined = join_updates(summary, compared.summary, (target, golden), updates)
    if joined.first is not None and joined.first.module == IN_OPTIMIZER:
        joined = replace(joined, first=by_framework(joined.first, target, golden))
    note = settings_without_effect(updates) if joined.first is None else ""
    return replace(joined, notes=[*joined.notes, note]) if note else joined


def _measured_noise(noise: Run, golden: Run, pairs: pl.DataFrame, options: Options) -> NDArray[np.float64]:
    """How far the noise run is from the golden run, for each row of the pair table; NaN where it says nothing."""
    if noise.mode != golden.mode or noise.mode == DIGESTS:
        raise BadInput(f"the tasks differ: {noise.mode!r} here, {golden.mode!r} in {golden.path}", where=noise.path)
    table = pair_table(noise, golden, options.match(noise, golden))
    evidence = _measure(noise.mode, noise, golden, table, replace(options, measure=None, progress=silent))
    of_golden = np.full(golden.table.height, np.nan)
    rows = table["g_row"].fill_null(-1).to_numpy()
    known = (rows >= 0) & ~evidence.deviation.nonfinite
    of_golden[rows[known]] = evidence.deviation.error[known]
    if not np.nan_to_num(of_golden).any():  # the same kernels once more: a rerun that is equal says nothing
        raise BadInput(
            "equals the golden run in every value, so it shows no noise",
            where=noise.path, hint="record it with perturb=1, with other kernels, or with another number of threads",
        )  # fmt: skip
    wanted = pairs["g_row"].fill_null(-1).to_numpy()
    return np.where(wanted >= 0, of_golden[wanted], np.nan)


def common_mode(target: Run, golden: Run) -> str:
    """The way both runs can be measured; BadInput where they cannot be compared at all."""
    for run in (target, golden):
        if "perturb" in run.settings:
            raise BadInput(
                "was recorded with perturb: it measures noise and is neither target nor golden",
                where=run.path, hint="name it with --noise, beside two runs recorded without perturb",
            )  # fmt: skip
    if target.single_points != golden.single_points:
        raise BadInput(
            f"{target.path.name} cannot be compared with {golden.path}",
            where=target.path, hint="give two dump.json or two debug.json files",
        )  # fmt: skip
    if target.task != golden.task:
        raise BadInput(
            f'the tasks differ: {target.task!r} here, {golden.task!r} in {golden.path}',
            where=target.path, hint="record both runs with the same task",
        )  # fmt: skip
    if target.mode != golden.mode:
        with_digest, without = (target, golden) if target.mode == DIGESTS else (golden, target)
        raise BadInput(
            f"only {with_digest.path} holds checksums",
            where=without.path, hint="record both runs with the same summary_mode",
        )  # fmt: skip
    if target.mode == TENSORS:
        for run in (target, golden):
            if not run.in_memory and not run.tensor_folder.is_dir():
                raise BadInput("the folder of the tensors is missing", where=run.tensor_folder)
    return target.mode


def _measure(mode: str, target: Run, golden: Run, pairs: pl.DataFrame, options: Options) -> Evidence:
    from twinprobe._judge.deviation import by_sketches, of_digests, of_statistics, of_tensors
    from twinprobe._judge.verdicts import Evidence
    from twinprobe._measure.statistics import stat_differences

    if mode == DIGESTS:
        return Evidence(mode, pairs, of_digests(pairs))
    rounding = options.thresholds.rounding
    differences = stat_differences(pairs)
    has_sketches = all(run.sketch_file is not None or run.arrangement for run in (target, golden))
    estimate = by_sketches(target, golden, pairs) if has_sketches else None
    recorded = of_statistics(pairs, differences, rounding, estimate)
    if mode == STATISTICS:
        return Evidence(mode, pairs, recorded, differences, estimate=estimate)

    metrics = (options.measure or tensor_metrics)(target, golden, pairs, options.progress)
    moved = options.reorder(target, golden, pairs, metrics) if options.reorder is not None else {}
    if moved:
        rows, (t_files, g_files) = list(moved), zip(*moved.values(), strict=True)
        pairs = pairs.with_columns(
            pairs[name].scatter(rows, files) for name, files in (("t_file", t_files), ("g_file", g_files))
        )
        again = tensor_metrics(target, golden, pairs[rows], silent)
        metrics = metrics.with_columns(metrics[name].scatter(rows, again[name]) for name in metrics.columns)
    return Evidence(mode, pairs, of_tensors(pairs, metrics, recorded, rounding), differences, metrics)


def _summarise(target: Run, golden: Run, evidence: Evidence, judged: Judged, pairs: Pairs) -> Summary:
    from twinprobe._judge.describe import describe_first, describe_others, notes
    from twinprobe._judge.results import results

    found = []
    if judged.flow is not None and judged.noise is not None and not target.single_points:
        deviation = Deviation(judged.state, judged.error, evidence.deviation.nonfinite)
        claimed = any(beginning.reaches for beginning in judged.beginnings)
        found = results(evidence.pairs, judged.flow, judged.noise, deviation, claimed=claimed)
    matched = int(((pairs.target >= 0) & (pairs.golden >= 0)).sum())
    verdicts = {name: judged.verdict.count(name) for name in ("pass", "warning", "error")}
    return Summary(
        mode=evidence.mode,
        target=_side(target),
        golden=_side(golden),
        rows=len(pairs.target),
        matched=matched,
        target_only=int((pairs.golden < 0).sum()),
        golden_only=int((pairs.target < 0).sum()),
        verdicts=verdicts,
        first=describe_first(target, golden, evidence, judged),
        others=describe_others(target, golden, evidence, judged, _MOST_OTHERS),
        results=found,
        notes=[
            *target.notes,
            *golden.notes,
            *pairs.notes,
            *notes(target, evidence, judged),
            *(evidence.isolated.notes if evidence.isolated is not None else ()),
            *([_IN_EIGHT_BITS] if target.settings.get(HIDDEN_PRECISION, 0.0) >= EIGHT_BITS else ()),
        ],
        files=[],
        unread=int(judged.unread.sum()),
    )


def _side(run: Run) -> RunInfo:
    return RunInfo(str(run.path), run.framework, run.task, run.level, len(run.ops), run.table.height)


# Measuring the tensors that both runs kept.

_NUMBERS = ("cosine", "euclid", "max_abs", "max_rel", "one_thousandth", "five_thousandths", "relative_norm")


def tensor_metrics(target: Run, golden: Run, pairs: pl.DataFrame, progress: Callable[[int, int], None]) -> pl.DataFrame:
    """One row of metrics per pair; rows without two files say why in ``status`` or ``fault``."""
    return file_metrics(target.tensor_folder, golden.tensor_folder, pairs, progress)


def file_metrics(
    target: Path,
    golden: Path,
    pairs: pl.DataFrame,
    progress: Callable[[int, int], None],
    *,
    work: int | None = None,
    load: Callable[[list[int]], Iterator[tuple[Loader, Loader]]] | None = None,
) -> pl.DataFrame:
    """The metrics of pairs whose files (columns t_file and g_file) lie in these two folders.

    ``work`` is the ``work_of`` the whole run, where these pairs are only some of it: a part is measured like the whole.
    ``load`` loads the pairs of these rows, where they lie in no folder.
    """
    import polars as pl

    from twinprobe._measure.pair import measure_pairs

    rows = pairs.height
    files = (pairs["t_file"].is_not_null() & pairs["g_file"].is_not_null()).to_numpy()
    chosen = np.flatnonzero(files)
    numbers = {name: np.full(rows, np.nan) for name in _NUMBERS}
    absent = {name: np.ones(rows, dtype=bool) for name in _NUMBERS}
    status = ["unsupported"] * rows
    fault: list[str | None] = [None] * rows
    identical, nonfinite = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    jobs = load(chosen.tolist()) if load is not None else _jobs(target, golden, pairs, chosen.tolist())
    # Progress is told in bytes: one embedding may take as long as a thousand biases.
    sizes = file_sizes(target, pairs["t_file"].gather(chosen).to_list()) if work is None else [1] * len(chosen)
    reached, whole = np.cumsum([max(size, 1) for size in sizes], dtype=np.int64), max(sum(sizes), 1)
    results = measure_pairs(jobs, total_bytes=2 * whole if work is None else work)
    for done, (at, result) in enumerate(zip(chosen.tolist(), results, strict=True), start=1):
        if isinstance(result, TwinProbeError):
            fault[at] = str(result)
        else:
            for name in _NUMBERS:
                value = getattr(result, name)
                if value is not None:
                    numbers[name][at] = value
                    absent[name][at] = False
            status[at], identical[at] = result.status, result.identical
            nonfinite[at] = bool(result.nan_only_target or result.nan_only_golden or result.inf_differs)
        if done % 16 == 0:
            progress(int(reached[done - 1]) >> 20, whole >> 20)
    columns: dict[str, pl.Series] = {"status": pl.Series(status), "fault": pl.Series(fault, dtype=pl.String)}
    for name in _NUMBERS:
        column = pl.Series(numbers[name])
        columns[name] = column.set(pl.Series(absent[name]), None)
    columns["identical"] = pl.Series(identical)
    columns["nonfinite"] = pl.Series(nonfinite)
    return pl.DataFrame(columns)


def _jobs(target: Path, golden: Path, pairs: pl.DataFrame, rows: list[int]) -> Iterator[tuple[Loader, Loader]]:
    t_files, g_files = pairs["t_file"].to_list(), pairs["g_file"].to_list()
    sides = (target, t_files), (golden, g_files)
    from twinprobe._measure.elements import AT_ONCE
    from twinprobe._runs.tensors.tensor_files import tensor_loaders

    if pairs["joined"].any() or pairs["turn"].null_count() < pairs.height:
        from twinprobe._compare.pair_table import laid_out_jobs

        return laid_out_jobs(sides, rows, pairs["turn"].to_list(), pairs["joined"].to_list())
    if any(column.str.starts_with(WHOLE).any() for column in (pairs["t_file"], pairs["g_file"])):
        from twinprobe._layout.pieces import load_whole

        loads = (partial(load_whole, folder, names[at]) for at in rows for folder, names in sides)
        return zip(loads, loads, strict=True)
    files = ((folder, names[at]) for at in rows for folder, names in sides)
    loaders = tensor_loaders(files, at_once=AT_ONCE)
    return zip(loaders, loaders, strict=True)


def work_of(target: Path, pairs: pl.DataFrame) -> int:
    """About how many bytes there are to read on both sides; enough to choose how to measure."""
    both = pairs["t_file"].is_not_null() & pairs["g_file"].is_not_null()
    return 2 * sum(file_sizes(target, pairs["t_file"].filter(both).to_list()))


def file_sizes(folder: Path, names: list[str]) -> list[int]:
    """The bytes of each tensor file; what cannot be read counts as nothing."""
    from twinprobe._runs.tensors.tensor_files import named_size

    if not any(name.startswith(WHOLE) for name in names):
        return [named_size(folder, name) for name in names]
    from twinprobe._layout.pieces import files_of

    pieces = (files_of(name) if name.startswith(WHOLE) else [name] for name in names)
    return [sum(named_size(folder, file) for file in files) for files in pieces]
