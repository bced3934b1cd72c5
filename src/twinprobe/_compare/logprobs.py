"""Log-probabilities of the same tokens from two engines: how far apart they are, over steps and at worst, and where.

A training forward pass against the rollout of an inference engine: both give each token of a sequence a probability.
They come as plain arrays (Parquet, npz, JSON lines), or follow from the logits of two recordings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from twinprobe._compare.one import Comparison, Options
from twinprobe._lazy import polars as pl
from twinprobe._measure.elements import AT_ONCE, FLOAT64, numbers
from twinprobe._report.tokens import LogprobReport
from twinprobe._runs.run import RUN_FILES, Run, find_run, open_run, run_folders
from twinprobe._runs.table import OUTPUT
from twinprobe._runs.tensors.containers import tensors_in
from twinprobe._runs.tensors.tensor_files import open_named
from twinprobe._runs.whole_files import open_file
from twinprobe.errors import BadInput, DamagedTensor, NothingToCompare

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from twinprobe._align.tokens import TokenPairs

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

# What the arrays are called, as trainers and engines write them; the first that is there counts.
NAMES = {
    "input_ids": ("input_ids", "token_ids", "ids", "tokens", "responses"),
    "logprobs": ("logprobs", "log_probs", "logprob", "token_logprobs", "rollout_log_probs", "old_log_probs"),
    "mask": ("mask", "loss_mask", "response_mask", "action_mask", "attention_mask"),
    "step": ("step", "global_step", "iteration"),
    "sequence": ("sequence", "sequence_id", "sample", "index"),
}
SUFFIXES = (".parquet", ".pq", ".npz", ".jsonl", ".ndjson", ".json")
_LONGEST_LINE = 1 << 28


@dataclass
class Scored:
    """One sequence: its ids, the log-probability of each (NaN: none), and which of them count."""

    ids: Ints
    logprobs: Floats
    mask: NDArray[np.bool_]
    step: int | None


def read_scored(path: Path) -> list[Scored]:
    """Read the sequences of a Parquet, npz or JSON lines file; BadInput says what is wrong with it."""
    suffix = path.suffix.lower()
    if not path.is_file():
        raise BadInput("does not exist" if not path.exists() else "is no file", where=path)
    if suffix not in SUFFIXES:
        raise BadInput("is not Parquet, npz or JSON lines", where=path, hint=f"expected {', '.join(SUFFIXES)}")
    readers: dict[str, Callable[[Path], Iterable[Mapping[str, Any]]]] = {
        ".parquet": _parquet, ".pq": _parquet, ".npz": _npz,
    }  # fmt: skip
    found = [_scored(path, number, row) for number, row in enumerate(readers.get(suffix, _json_lines)(path))]
    if not found:
        raise NothingToCompare("holds no sequences", where=path)
    return found


def _named(columns: Iterable[str], path: Path) -> dict[str, str]:
    """Which column or array is what."""
    held = set(columns)
    found = {what: next((name for name in names if name in held), "") for what, names in NAMES.items()}
    for what in ("input_ids", "logprobs"):
        if not found[what]:
            listed = ", ".join(sorted(held)[:12]) or "nothing"
            raise BadInput(
                f"has no {what}: it holds {listed}", where=path, hint=f"known names: {', '.join(NAMES[what])}"
            )
    return {what: name for what, name in found.items() if name}


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open_file(path) as file:
            table = pl.read_parquet(file)
    except BaseException as error:
        # A damaged file may make the reader panic, which is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadInput(f"cannot be read as Parquet: {str(error).splitlines()[0][:200]}", where=path) from None
    names = _named(table.columns, path)
    chosen = table.select(pl.col(name).alias(what) for what, name in names.items())
    if not isinstance(chosen["input_ids"].dtype, pl.List | pl.Array):  # one row for each token
        if "sequence" not in names:
            hint = f"give lists, or a column {' or '.join(NAMES['sequence'][:2])}"
            raise BadInput("holds one row for each token, and does not say of which sequence", where=path, hint=hint)
        keys = ["sequence", *(["step"] if "step" in names else [])]
        chosen = chosen.group_by(keys, maintain_order=True).agg(pl.exclude(keys))
    yield from chosen.iter_rows(named=True)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    names: dict[str, str] = {}
    with open_file(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), start=1):
            if not line.strip():
                continue
            try:
                row = decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadInput(f"line {number} is not a JSON object: {error}", where=path) from None
            names = names or _named(row, path)
            missing = [name for what, name in names.items() if what in ("input_ids", "logprobs") and name not in row]
            if missing:
                raise BadInput(f"line {number} has no {missing[0]}", where=path)
            yield {what: row.get(name) for what, name in names.items()}


def _npz(path: Path) -> Iterator[dict[str, Any]]:
    try:
        stored = tensors_in(path)
        names = _named(stored, path)
        arrays: dict[str, Any] = {}
        for what, name in names.items():
            tensor = stored[name].read()
            whole = "int" in tensor.dtype or tensor.dtype == "bool"
            flat = np.asarray(tensor.data[:]) if whole else numbers(tensor.dtype, tensor.data[:], FLOAT64)
            arrays[what] = flat.reshape(tensor.shape)
    except (DamagedTensor, OSError) as error:
        raise BadInput(f"cannot be read: {getattr(error, 'what', error)}", where=path) from None
    ids = arrays["input_ids"]
    if ids.ndim == 1 and "sequence" in arrays:
        edges = np.flatnonzero(np.diff(arrays["sequence"])) + 1
        arrays = {what: np.split(array, edges) for what, array in arrays.items() if what != "sequence"}
        if "step" in arrays:
            arrays["step"] = [part[0] for part in arrays["step"]]
    elif ids.ndim == 1:
        arrays = {what: array[None] if array.ndim == ids.ndim else array for what, array in arrays.items()}
    elif ids.ndim != 2:
        raise BadInput(f"input_ids has the shape {list(ids.shape)}", where=path, hint="expected [sequences, tokens]")
    count = len(arrays["input_ids"])
    for what, values in arrays.items():
        if np.ndim(values) and len(values) not in (1, count):
            raise BadInput(f"{what} has {len(values)} rows, input_ids has {count}", where=path)
    for number in range(count):
        yield {
            what: values if not np.ndim(values) else values[number if len(values) == count else 0]
            for what, values in arrays.items()
        }


def _scored(path: Path, number: int, row: Mapping[str, Any]) -> Scored:
    where = f"sequence {number}"
    try:
        ids = np.asarray(row["input_ids"], dtype=np.float64)
        logprobs = np.asarray(row["logprobs"], dtype=np.float64)  # None becomes NaN
        mask = row.get("mask")
        counts = np.ones(len(ids), dtype=bool) if mask is None else np.asarray(mask, dtype=np.float64) != 0
        step = None if row.get("step") is None else int(np.asarray(row["step"]).reshape(-1)[0])
    except (TypeError, ValueError, IndexError, OverflowError):
        raise BadInput(f"{where}: input_ids, logprobs and mask must be lists of numbers", where=path) from None
    if ids.ndim != 1 or logprobs.ndim != 1 or counts.ndim != 1:
        raise BadInput(f"{where}: input_ids, logprobs and mask must be flat lists", where=path)
    if not np.array_equal(ids, np.floor(ids)):
        raise BadInput(f"{where}: input_ids are not whole numbers", where=path)
    if len(logprobs) == len(ids) - 1:  # of all but the first, which nothing predicts
        logprobs = np.concatenate([[np.nan], logprobs])
    if len(counts) == len(ids) - 1:
        counts = np.concatenate([[False], counts])
    if not len(ids) == len(logprobs) == len(counts):
        lengths = f"{len(ids)} ids, {len(logprobs)} logprobs" + ("" if mask is None else f", {len(counts)} in the mask")
        raise BadInput(f"{where}: {lengths}", where=path, hint="one logprob for each id, or one less")
    if (logprobs[counts] > 1e-3).any():
        at = int(np.flatnonzero(counts & (logprobs > 1e-3))[0])
        hint = "the logarithm of a probability is at most 0"
        raise BadInput(f"{where}: the logprob of token {at} is {logprobs[at]:.4g}", where=path, hint=hint)
    return Scored(ids.astype(np.int64), logprobs, counts, step)


# The same from recordings: the logits of each token, and the id that came next.


def score_recordings(
    target: Path, golden: Path
) -> tuple[list[tuple[Scored, Scored]], list[tuple[TokenPairs, Comparison]]]:
    """The sequences that two recordings share, scored by both, step by step; and the comparisons behind them."""
    from twinprobe._compare.tokens import ON, compare_tokens, tokens_of

    found: list[tuple[Scored, Scored]] = []
    compared: list[tuple[TokenPairs, Comparison]] = []
    for step, (target_runs, golden_runs) in enumerate(_steps_of_both(target, golden)):
        tokens = tokens_of(target_runs, golden_runs, ON)
        if tokens is None:
            raise BadInput(f"shares no tokens with {golden_runs[0].path}", where=target_runs[0].path)
        comparison = compare_tokens(tokens, Options())
        scored = _from_logits(tokens, comparison, step)
        found += scored
        compared += [(tokens, comparison)] * len(scored)
    return found, compared


def _steps_of_both(target: Path, golden: Path) -> Iterator[tuple[list[Run], list[Run]]]:
    """The runs of each step on both sides; all as one where one side spreads its calls over more steps."""
    sides: list[list[list[Path]]] = []
    for path in (target, golden):
        try:
            folders = run_folders(path) if path.is_dir() else []
        except BadInput:
            folders = []
        steps: dict[int, list[Path]] = defaultdict(list)
        for folder in folders:
            steps[folder.key.step] += [file for file in folder.files() if file.name.startswith("dump")]
        sides.append([files for files in steps.values() if files] or [[find_run(path)]])
    if len(sides[0]) != len(sides[1]):
        sides = [[[file for files in side for file in files]] for side in sides]
    for target_files, golden_files in zip(*sides, strict=True):
        yield list(map(open_run, target_files)), list(map(open_run, golden_files))


def _from_logits(tokens: TokenPairs, comparison: Comparison, step: int) -> list[tuple[Scored, Scored]]:
    pairs, where = comparison.evidence.pairs, comparison.target.path
    if comparison.tokens is None:
        raise BadInput("keeps no tensors: logits are needed", where=where, hint="record both runs with task tensor")
    row, held = _logits_row(comparison)
    given = np.full(tokens.count, -1, dtype=np.int64)
    given[held] = np.arange(len(held))
    # The logits of a token score the one that follows it: its neighbour in the order of the sequence.
    follows = (np.diff(tokens.sequence) == 0) & (np.diff(tokens.index) == 1) & (given[:-1] >= 0)
    scored = np.flatnonzero(follows) + 1
    if not len(scored):
        raise BadInput("holds no token that another one follows on both sides", where=where)
    sides = []
    for run, side in ((comparison.target, "t"), (comparison.golden, "g")):
        logprobs = np.full(tokens.count, np.nan)
        file = pairs[f"{side}_file"][row]
        logprobs[scored] = _log_softmax(run.tensor_folder, file, given[scored - 1], tokens.ids[scored])
        sides.append(logprobs)
    found = []
    for number in dict.fromkeys(tokens.sequence[scored].tolist()):
        own = np.flatnonzero(tokens.sequence == number)
        target, golden = (Scored(tokens.ids[own], side[own], ~np.isnan(side[own]), step) for side in sides)
        found.append((target, golden))
    return found


def _logits_row(comparison: Comparison) -> tuple[int, Ints]:
    """The pair of tensors with the logits: the last output of a module with the most features."""
    pairs, calls = comparison.evidence.pairs, comparison.target.op_names
    assert comparison.tokens is not None
    columns = pairs.select("t_op", "t_role", "t_shape", "t_file").iter_rows()
    candidates = [
        (int(shape.strip("[]").split(",")[-1]), row, held)
        for row, ((op, role, shape, file), held) in enumerate(zip(columns, comparison.tokens.held, strict=True))
        if role == OUTPUT and calls[op].is_module and file and held is not None
    ]
    if not candidates:
        raise BadInput("holds no logits", where=comparison.target.path, hint="record modules: level L0 or mix")
    _, row, held = max(candidates, key=lambda candidate: candidate[:2])
    return row, held


def _log_softmax(folder: Path, file: str, rows: Ints, ids: Ints) -> Floats:
    """The log-probability of one id in each of these rows of logits."""
    logits = open_named(folder, file, AT_ONCE)
    width = logits.shape[1]
    if int(ids.max()) >= width:
        raise BadInput(f"an id is {int(ids.max())}, but there are {width} logits", where=folder)
    found = np.empty(len(rows))
    for at, (row, token) in enumerate(zip(rows.tolist(), ids.tolist(), strict=True)):
        values = numbers(logits.dtype, logits.data[row * width : (row + 1) * width], FLOAT64)
        top = values.max()
        found[at] = values[token] - top - np.log(np.exp(values - top).sum())
    return found


# The comparison.


@dataclass
class LogprobComparison:
    """Two engines' log-probabilities, compared. It is true when no token is beyond the limit."""

    table: pl.DataFrame
    """One row for each step, and one for all."""
    sequences: pl.DataFrame
    """One row for each sequence, the worst first."""
    worst: tuple[Scored, Scored]
    limit: float
    lost: list[str] = field(default_factory=list)
    origin: str = ""
    """In words: where the worst sequence begins to differ, if recordings tell."""

    @property
    def share(self) -> float:
        """The share of all tokens that differ by more than the limit."""
        return float(self.table["share_beyond"][-1])

    def __bool__(self) -> bool:
        return self.share == 0

    @property
    def lines(self) -> list[str]:
        """What the command prints."""
        total = self.table.row(-1, named=True)
        first = self.sequences.row(0, named=True)
        steps = self.table.height - 1
        found = [
            f"{total['tokens']:,} tokens of {total['sequences']:,} sequences"
            + (f" in {steps:,} steps" if steps > 1 else ""),
            f"difference (target minus golden): mean {total['mean_difference']:.3g}, "
            f"mean size {total['mean_abs']:.3g}, largest {total['max_abs']:.3g}",
            f"KL divergence of target from golden: {total['kl']:.3g}",
            f"beyond {self.limit:g}: {total['share_beyond']:.2%} of the tokens",
            f"worst: token {first['worst_token']} (id {first['worst_id']}) of sequence {first['sequence']}"
            + (f" in step {first['step']}" if steps > 1 else "")
            + f": {first['target']:.4g} against {first['golden']:.4g}",
        ]
        return found + ([f"the worst sequence: {self.origin}"] if self.origin else [])

    def save(self, folder: Path, stem: str) -> list[Path]:
        """Write both tables and the page."""
        target, golden = self.worst
        report = LogprobReport(self.table, self.sequences, self.lines, self.limit, target.ids, target.logprobs,
                               golden.logprobs, target.mask & golden.mask)  # fmt: skip
        return report.write(folder, stem)


def compare_logprobs(
    target: Path, golden: Path, *, limit: float = 0.1, recordings: tuple[Path, Path] | None = None
) -> LogprobComparison:
    """Compare the log-probabilities of two files or of two recordings."""
    if not limit > 0:
        raise BadInput(f"the limit is {limit:g}", hint="it must be more than 0")
    arrays = []
    for path in (target, golden):
        if not path.exists():
            raise BadInput("does not exist", where=path)
        arrays.append(path.is_file() and path.suffix.lower() in SUFFIXES and path.name not in RUN_FILES)
    if arrays[0] != arrays[1]:
        raise BadInput(f"{target} and {golden} are a file of arrays and a recording", hint="give two of the same kind")
    lost: list[str] = []
    compared: list[tuple[TokenPairs, Comparison]] = []
    if arrays[0]:
        pairs = _paired(read_scored(target), read_scored(golden), (target, golden), lost)
    else:
        pairs, compared = score_recordings(target, golden)
    found = _measured(pairs, limit)
    number = int(found.sequences["sequence"][0])
    found.worst = pairs[number]
    found.lost = lost
    if recordings is not None and not compared:
        compared, number = _recorded_worst(recordings, [pairs[at] for at in found.sequences["sequence"].to_list()])
        if number:
            found.origin = f"not in both recordings; the worst that is, row {number + 1} of the table, "
        worst = pairs[int(found.sequences["sequence"][number])][1]
        number = 0
    else:
        worst = found.worst[1]
    if compared:
        found.origin += _origin(*compared[number], worst)
    return found


def _recorded_worst(
    recordings: tuple[Path, Path], pairs: Sequence[tuple[Scored, Scored]]
) -> tuple[list[tuple[TokenPairs, Comparison]], int]:
    """The comparison of the recorded step that holds the worst recorded sequence, and its place among these."""
    from twinprobe._compare.tokens import ON, compare_tokens, tokens_of

    steps = [tokens for sides in _steps_of_both(*recordings) if (tokens := tokens_of(*sides, ON)) is not None]
    for place, (one, _) in enumerate(pairs):
        for tokens in steps:
            if _holding(tokens, one) is not None:
                return [(tokens, compare_tokens(tokens, Options()))], place
    raise BadInput("none of the sequences is in both recordings", where=recordings[0])


def _holding(tokens: TokenPairs, wanted: Scored) -> int | None:
    """The number of the aligned sequence that holds these ids."""
    needle = wanted.ids.tolist()
    for number in dict.fromkeys(tokens.sequence.tolist()):
        own = tokens.ids[tokens.sequence == number].tolist()
        if any(own[at : at + len(needle)] == needle[: len(own) - at] for at in range(min(len(own), 64))):
            return int(number)
    return None


def _origin(tokens: TokenPairs, comparison: Comparison, worst: Scored) -> str:
    """Where one sequence begins to differ: its tokens alone are compared once more."""
    from twinprobe._compare.tokens import compare_tokens

    number = _holding(tokens, worst)
    if number is None:
        return ""
    first = comparison.summary.first
    if len(set(tokens.sequence.tolist())) > 1:
        # A few tokens may show less than all of them together do.
        first = compare_tokens(tokens.only(number), Options()).summary.first or first
    if first is None:
        return "every recorded layer agrees within noise"
    return f"begins at {first.op} ({first.module or 'the model'}): {first.sentence}"


def _to_last_counted(one: Scored) -> Scored:
    """Without what follows the last token that counts."""
    end = int(np.flatnonzero(one.mask)[-1]) + 1 if one.mask.any() else 0
    return replace(one, ids=one.ids[:end], logprobs=one.logprobs[:end], mask=one.mask[:end])


def _counted(one: Scored) -> Scored:
    """The tokens from the first that counts to the last."""
    start = int(np.argmax(one.mask))
    one = _to_last_counted(one)
    return replace(one, ids=one.ids[start:], logprobs=one.logprobs[start:], mask=one.mask[start:])


def _paired(
    target: list[Scored], golden: list[Scored], paths: tuple[Path, Path], lost: list[str]
) -> list[tuple[Scored, Scored]]:
    """Pair sequences by their step and their ids; equal ones in order. Padding that no mask tells of is cut off."""
    both = all(one.step is not None for side in (target, golden) for one in side)

    def key_of(one: Scored) -> tuple[int | None, bytes]:
        return one.step if both else None, one.ids.tobytes()

    paired: dict[int, tuple[Scored, Scored]] = {}
    rest = list(golden)
    cuts: tuple[Callable[[Scored], Scored], ...] = (lambda whole: whole, _to_last_counted, _counted)
    for cut in cuts:
        free: dict[Any, list[tuple[int, Scored]]] = defaultdict(list)
        for at, one in enumerate(map(cut, rest)):
            free[key_of(one)].append((at, one))
        used = set()
        mine = [(number, cut(one)) for number, one in enumerate(target) if number not in paired]
        keys = Counter(key_of(one) for _, one in mine)
        for number, one in mine:
            same = free.get(key_of(one))
            # One answer to several prompts: which is which is not known without them.
            if not same or (cut is _counted and (len(same) > 1 or keys[key_of(one)] > 1)):
                continue
            at, other = same.pop(0)
            used.add(at)
            step = one.step if one.step is not None else other.step
            paired[number] = replace(one, step=step), replace(other, step=step)
        rest = [one for at, one in enumerate(rest) if at not in used]
    found = [paired[number] for number in sorted(paired)]
    alone = len(target) - len(found)
    for count, path, elsewhere in ((alone, paths[0], paths[1]), (len(rest), paths[1], paths[0])):
        if count:
            lost.append(f"{path}: {count:,} sequences have no counterpart in {elsewhere}")
    if not found:
        raise NothingToCompare(
            f"no sequence has the same ids in {paths[1]}", where=paths[0], hint="are these the same tokens and steps?"
        )
    return found


def _measured(pairs: Sequence[tuple[Scored, Scored]], limit: float) -> LogprobComparison:
    rows, steps = [], defaultdict(list)
    for number, (one, other) in enumerate(pairs):
        counts = one.mask & other.mask & ~(np.isnan(one.logprobs) & np.isnan(other.logprobs))
        places = np.flatnonzero(counts)
        if not len(places):
            continue
        with np.errstate(invalid="ignore"):
            gap = one.logprobs[places] - other.logprobs[places]
        gap = np.where(np.isnan(gap), np.where(one.logprobs[places] == other.logprobs[places], 0.0, np.inf), gap)
        worst = int(np.argmax(np.abs(gap)))
        at = int(places[worst])
        step = one.step if one.step is not None else 0
        steps[step].append(gap)
        rows.append((step, number, len(gap), *_figures(gap, limit), at, int(one.ids[at]), float(one.logprobs[at]),
                     float(other.logprobs[at])))  # fmt: skip
    if not rows:
        raise NothingToCompare("no token has a log-probability on both sides that the masks count")
    names = ("mean_difference", "mean_abs", "max_abs", "kl", "share_beyond")
    sequences = pl.DataFrame(
        rows, schema=["step", "sequence", "tokens", *names, "worst_token", "worst_id", "target", "golden"], orient="row"
    ).sort("max_abs", "mean_abs", descending=True, maintain_order=True)
    lines = [(str(step), len(gaps), sum(map(len, gaps)), *_figures(np.concatenate(gaps), limit))
             for step, gaps in sorted(steps.items())]  # fmt: skip
    every = np.concatenate([gap for gaps in steps.values() for gap in gaps])
    lines.append(("all", len(rows), len(every), *_figures(every, limit)))
    table = pl.DataFrame(lines, schema=["step", "sequences", "tokens", *names], orient="row")
    return LogprobComparison(table, sequences, pairs[0], limit)


def _figures(gap: Floats, limit: float) -> tuple[float, float, float, float, float]:
    """Mean, mean size, largest, KL, and the share beyond the limit; what is infinite counts in the last two alone."""
    finite = gap[np.isfinite(gap)]
    beyond = float((np.abs(gap) > limit).mean())
    largest = float(np.abs(gap).max())
    if not len(finite):
        return float("nan"), float("nan"), largest, float("nan"), beyond
    # Of tokens drawn by the golden engine: r - 1 - log r has the mean of -log r, is never negative and scatters less.
    with np.errstate(over="ignore"):
        kl = float((np.expm1(finite) - finite).mean())
    return float(finite.mean()), float(np.abs(finite).mean()), largest, kl, beyond
