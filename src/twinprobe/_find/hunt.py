"""From two programs to the first call that differs: watch, record the first differing step, keep the suspects' tensors.

Each stage is a folder of plain recordings below the output folder: ``watch``, ``step`` and ``tensors``, each with
``target`` and ``golden``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._align.folders import FolderPair, pair_folders
from twinprobe._align.matcher import MappingOptions, build_matcher
from twinprobe._compare.one import Comparison, Options, compare_paths
from twinprobe._compare.ranks import rank_facts
from twinprobe._compare.steps import compare_steps
from twinprobe._find.page import curves, write_page
from twinprobe._find.programs import Task, run_program, side
from twinprobe._judge.ranks import find_culprits
from twinprobe._judge.search import PARAMETER_DIFFERS as PARAMETER
from twinprobe._judge.steps import StepsComparison, find_parting
from twinprobe._judge.verdicts import Thresholds
from twinprobe._report.console import json_bytes
from twinprobe._report.files import prepare_folder, replacing, result_stem, timestamp_now
from twinprobe._report.overview import write_steps
from twinprobe._report.tables import write_reports
from twinprobe._runs.run import DUMP, OPTIMIZER_FILE, PART, open_run, run_folders
from twinprobe._runs.watch import watch_files
from twinprobe.errors import BadInput, TwinProbeError

if TYPE_CHECKING:
    from twinprobe._judge.origin import Divergence

WATCH, STEP, TENSORS, REPLAY, CONFIRM = "watch", "step", "tensors", "replay", "confirm"
REPRODUCER = "reproducer"
PAGE, RESULT = "find.html", "find.json"
SEED = 1234
_TRIES = 3  # steps that are recorded until one shows where the difference begins
_ROUNDING = 64.0  # epsilons: a tolerance for what the judge takes for noise
_AROUND = 3  # calls before and after a suspect whose tensors are kept


@dataclass(frozen=True)
class Request:
    """What the user asked for. ``seed`` is None where the programs' seeds are left alone."""

    target: str
    golden: str
    output: Path
    seed: int | None = SEED
    from_step: int = 0
    steps: int | None = None
    exact: bool = False
    """Whether every bit counts, as it does for one program run twice."""
    resume: bool = False
    confirm: bool = False
    """Whether the target is run once more with golden's values where the difference begins."""


@dataclass
class Found:
    """What a hunt has found so far; find.json holds it."""

    target: dict[str, Any]
    golden: dict[str, Any]
    exact: bool
    sentence: str = ""
    agrees: bool | None = None
    """None while nobody knows."""
    step: int | None = None
    rank: str = ""
    first: dict[str, Any] | None = None
    """The first divergence, with the keys that compare gives it."""
    others: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    stages: dict[str, str] = field(default_factory=dict)
    """What each stage has found, in a sentence."""
    settings: dict[str, list[Any]] = field(default_factory=dict)
    """Settings that the two programs do not share."""
    reproducer: str = ""
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    interrupted: bool = False


Say = Callable[[str], None]


def hunt(request: Request, say: Say) -> Found:
    """Do all of it; ``say`` gets a line for whatever is known. What was found is written even after Ctrl-C."""
    return _Hunt(request, say).run()


class _Hunt:
    def __init__(self, request: Request, say: Say) -> None:
        self._request = request
        self._say = say
        self._sides = (side("target", request.target), side("golden", request.golden))
        self._recordings = [one.recording for one in self._sides if one.recording is not None]
        self._twice = not self._recordings and self._sides[0] == replace(self._sides[1], name="target")
        exact = request.exact or self._twice
        self.found = Found({"program": request.target}, {"program": request.golden}, exact)
        self._curves: dict[str, Any] = {}
        self._updates: dict[str, tuple[tuple[int, int], ...]] = {}
        self._steps: list[tuple[int, int]] = []
        """The numbers that each pair of watched steps has on either side."""

    def run(self) -> Found:
        output = self._request.output
        if not self._request.resume and any((output / name).exists() for name in (RESULT, WATCH, STEP)):
            raise BadInput(
                "holds an earlier search",
                where=output,
                hint="add --resume to continue it, or choose another folder with -o",
            )
        prepare_folder(output)
        try:
            if any(not watch_files(one) for one in self._recordings):
                self._search_recording()
            else:
                self._watch()
                if self.found.agrees is False:
                    self._record_step()
        except KeyboardInterrupt:
            self.found.interrupted = True
            watched = [output / WATCH / one.name for one in self._sides]
            if not self.found.stages and all(map(watch_files, watched)):  # both have come some way
                with suppress(TwinProbeError):
                    self._find_step(watched)
            self.found.notes.append("interrupted; --resume continues from here")
            raise
        finally:
            self._write()
        return self.found

    # -- the stages -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Run both programs and find the first step that differs."""
        first, count = self._request.from_step, self._request.steps
        folders = self._run(WATCH, [{"level": "watch"}] * 2, [None if count is None else first + count - 1] * 2)
        self._find_step(folders)

    def _find_step(self, folders: Sequence[Path]) -> None:
        """The first step that differs in what was watched."""
        compared = compare_steps(folders[0], folders[1])
        if self.found.exact:
            compared = _to_the_bit(compared)
        found, parting = self.found, compared.parting
        found.agrees, found.step = parting.step is None, parting.step
        found.rank = f"rank{parting.rank}" if len(compared.trends) > 1 else ""
        found.notes += compared.notes
        trend = next(one for one in compared.trends if one.rank == parting.rank)
        self._steps = list(zip(trend.steps.tolist(), trend.golden_steps.tolist(), strict=True))
        self._curves = curves(trend, parting.module)
        files = write_steps(compared, prepare_folder(self._request.output / WATCH), timestamp_now())
        found.files += [f"{WATCH}/{file.name}" for file in files if file.suffix == ".html"]
        sentence = parting.sentence[:1].upper() + parting.sentence[1:] + "."
        if self._twice and found.agrees:
            sentence = f"The program is deterministic: both runs are equal in all {len(self._steps)} steps."
        found.sentence = sentence
        self._end(WATCH, sentence)
        if found.agrees and any(one.difference.any() for one in compared.trends):
            hint = "--exact looks for the first call that differs at all"
            self._say(f"  {hint}")
            found.notes.append(hint)

    def _record_step(self) -> None:
        """Record the first differing step on both sides, and find the call where it begins."""
        found = self.found
        at = next(place for place, (step, _) in enumerate(self._steps) if step == found.step)
        tried: set[int] = set()
        while True:
            tried.add(at)
            numbers = self._steps[at]
            folders = self._run(STEP, [{"level": "mix", "step": [step]} for step in numbers], list(numbers))
            paths = [folder / f"step{step}" for folder, step in zip(folders, numbers, strict=True)]
            chosen = self._first_of(next(_steps(*paths))[1])
            first = chosen[1].summary.first if chosen else None
            # A step that begins with other parameters was parted by the update before it, however little of that was
            # watched; one that agrees is followed by the one that was seen to differ.
            after = at + 1 if first is None else at - 1 if first.begins == PARAMETER else at
            if after in tried or len(tried) == _TRIES or not 0 <= after < len(self._steps):
                break
            self._say(f"  step {numbers[0]} {'agrees' if first is None else 'begins with other parameters'}: "
                      f"looking at step {self._steps[after][0]}")  # fmt: skip
            at = after
        found.step = numbers[0]
        if chosen is None:
            self._end(STEP, f"Step {found.step} agrees when it is recorded: it is not the same in every run.")
            found.notes.append("run find with one program twice, to see which call is not deterministic")
            return
        self._take(*chosen, STEP)
        if chosen[1].target.path.name != OPTIMIZER_FILE:
            self._keep_tensors(chosen[1], numbers)

    def _keep_tensors(self, comparison: Comparison, numbers: tuple[int, int]) -> None:
        """Record the suspect and its neighbours once more, with their tensors, and judge again."""
        first = comparison.summary.first
        assert first is not None
        names = _suspects(comparison, first)
        records = [{"level": "mix", "task": "tensor", "step": [step], "list": chosen}
                   for step, chosen in zip(numbers, names, strict=True)]  # fmt: skip
        folders = self._run(TENSORS, records, list(numbers))
        paths = [folder / f"step{step}" for folder, step in zip(folders, numbers, strict=True)]
        try:
            chosen = self._first_of(next(_steps(*paths))[1], updates=False)
        except BadInput as error:
            self._end(TENSORS, f"The suspects could not be judged again: {error}")
            return
        if chosen is None:
            self._end(TENSORS, "the suspects' tensors agree: the difference did not occur again")
            return
        self._take(*chosen, TENSORS)
        self._replay(chosen[1])
        if self._request.confirm:
            self._confirm(comparison, numbers)

    def _replay(self, comparison: Comparison) -> None:
        """Run the suspect again from its own inputs; the side that is off by itself gets a reproducer."""
        from twinprobe._replay.recorded import ROOM, find_call, read_calls
        from twinprobe._replay.replay import replay_pair
        from twinprobe._replay.reproduce import write_reproducer

        first = comparison.summary.first
        assert first is not None
        calls: list[Any] = []
        names = _both_names(comparison, first.op)
        if "" in names:
            alone = "golden" if not names[0] else "target"
            self._end(REPLAY, f"only the {alone} run makes this call: there is no counterpart to run")
            return
        try:
            for run, name in zip((comparison.target, comparison.golden), names, strict=True):
                found = find_call(run, name)
                calls.append(read_calls(run, [found])[found])
            replayed = replay_pair(calls[0], calls[1])
            told = [replayed.sentence]
            if replayed.off != "neither":
                folder = self._request.output / REPRODUCER
                write_reproducer(calls[0], calls[1], folder, room=ROOM)
                self.found.reproducer = f"{REPRODUCER}/reproduce.py"
                told.append(f"{folder / 'reproduce.py'} shows it without TwinProbe")
        except TwinProbeError as error:
            told = [f"the call cannot be run again: {error}"]
        self._end(REPLAY, *told)

    def _confirm(self, comparison: Comparison, numbers: tuple[int, int]) -> None:
        """Run the target with golden's values at the module around the suspect: does the difference go away?"""
        first = comparison.summary.first
        assert first is not None
        if not first.module:
            self._end(
                CONFIRM, f"{first.op} is in no module but the model itself: there is nowhere to insert golden's values"
            )
            return
        request, (step, golden_step) = self._request, numbers
        values = request.output / TENSORS / "golden" / f"step{golden_step}"
        swap = {"module": first.module, "values": str(values.resolve()), "step": step}
        task = Task({"level": "watch"}, request.seed, request.from_step, step, swap=swap)
        one = self._sides[0]
        self._say(f"{CONFIRM}: running the target program with golden's values at {first.module}")
        folder = request.output / CONFIRM / one.name
        run_program(one, folder, task, reuse=request.resume)
        before = compare_steps(*(request.output / WATCH / name for name in ("target", "golden")))
        after = compare_steps(folder, request.output / WATCH / "golden")
        self._end(CONFIRM, _gone(before, after, step, first.module))

    def _search_recording(self) -> None:
        """A recording stands in place of a program: what it holds is recorded of the other side, and compared."""
        runs = [run_folders(one) for one in self._recordings]
        index = next((file for folder in runs[0] for file in folder.files()), None)
        if index is None:
            raise BadInput("holds no recorded run", where=self._recordings[0])
        recorded = open_run(index)
        wanted = sorted({max(folder.key.step, 0) for folder in runs[0]})
        record = {"level": recorded.level, "task": recorded.task, "step": wanted}
        folders = self._run(STEP, [record] * 2, [wanted[-1]] * 2)
        found = self.found
        compared = 0
        for step, pairs in _steps(*folders):
            chosen = self._first_of(pairs)
            compared += 1
            if chosen is not None:
                found.agrees, found.step = False, step
                found.sentence = f"Step {step} is the first recorded one that differs."
                self._take(*chosen, STEP)
                return
        found.agrees = True
        found.sentence = f"The runs agree in all {compared} recorded steps."
        self._end(STEP, found.sentence)

    # -- programs ---------------------------------------------------------------------------------------------------

    def _run(self, stage: str, records: list[dict[str, Any]], last: Sequence[int | None]) -> list[Path]:
        """The folders of both sides: programs are run, recordings are taken as they are."""
        folders = []
        request = self._request
        told: list[list[dict[str, Any]]] = []
        for one, record, end in zip(self._sides, records, last, strict=True):
            if one.recording is not None:
                if stage != WATCH and watch_files(one.recording):
                    raise BadInput(
                        f"was only watched: step {end} has no calls to compare",
                        where=one.recording, hint="give the command in place of this recording",
                    )  # fmt: skip
                folders.append(one.recording)
                continue
            digests = {"summary_mode": "md5"} if self.found.exact and record["level"] == "mix" else {}
            digests = {} if "task" in record else digests
            updates = self._updates.get(one.name, ())
            task = Task({**record, **digests}, request.seed, request.from_step, end, updates)
            folder = request.output / stage / one.name
            self._say(f"{stage}: running the {one.name} program: {one.text}")
            facts = run_program(one, folder, task, reuse=request.resume)
            folders.append(folder)
            told.append(facts)
            if stage == WATCH:
                self._updates[one.name] = tuple((length, times) for length, times in facts[0].get("updates", ()))
            described = getattr(self.found, one.name)
            if "model" not in described:
                described |= _description(facts)
                self._say(f"  {one.name}: {_words(described)}")
        if len(told) == 2 and not self.found.settings:
            settings = [facts[0]["settings"] for facts in told]
            pairs = {key: [one.get(key) for one in settings] for key in settings[0] | settings[1]}
            self.found.settings = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
            for key, pair in self.found.settings.items():
                self._say(f"  the setting {key} differs: {pair[0]} in target, {pair[1]} in golden")
        return folders

    # -- comparing --------------------------------------------------------------------------------------------------

    def _first_of(self, pairs: list[FolderPair], *, updates: bool = True) -> tuple[FolderPair, Comparison] | None:
        """Where a step's difference begins: on which rank, in what was computed or in what the optimizer did.

        What noise explains counts only where nothing else differs: the step is known to differ.
        """
        tolerances = [0.0] if self.found.exact else [None, _ROUNDING]
        for rounding in tolerances:
            options = Options(build_matcher(MappingOptions()), Thresholds(rounding=rounding))
            computed = self._compared(pairs, (DUMP, PART), options)
            ranks = find_culprits([rank_facts(one, max(pair.target.key.rank, 0)) for pair, one in computed])
            order = [culprit.rank for culprit in ranks]
            computed.sort(
                key=lambda one: order.index(rank) if (rank := max(one[0].target.key.rank, 0)) in order else 99
            )
            updated = self._compared(pairs, (OPTIMIZER_FILE,), options) if updates else []
            before = [one for one in computed if _begins_before_the_update(one[1])]
            differing = [one for one in (*updated, *computed) if one[1].summary.first is not None]
            if before or differing:
                return (before or differing)[0]
        return None

    def _compared(
        self, pairs: list[FolderPair], names: tuple[str, ...], options: Options
    ) -> list[tuple[FolderPair, Comparison]]:
        found = []
        for pair in pairs:
            files = [
                next((folder.path / name for name in names if (folder.path / name).is_file()), None)
                for folder in (pair.target, pair.golden)
            ]
            if files[0] is not None and files[1] is not None:
                found.append((pair, compare_paths(files[0], files[1], options)))
        return found

    def _take(self, pair: FolderPair, comparison: Comparison, stage: str) -> None:
        """The first divergence of a stage is what is known now; its whole table becomes a page of its own."""
        summary, found = comparison.summary, self.found
        first = summary.first
        assert first is not None
        found.first, found.rank = asdict(first), "" if pair.target.by_process else pair.target.label
        found.others = [asdict(one) for one in summary.others]
        if stage == STEP:  # the whole step was recorded, so that its results are there
            found.results = [asdict(one) for one in summary.results]
        stem = result_stem(timestamp_now(), pair.target.label)
        table = comparison.table()
        files = write_reports(table, replace(summary, rank=found.rank), self._request.output / stage, stem, ["html"])
        found.files += [f"{stage}/{file.name}" for file in files]
        where = f" ({found.rank})" if found.rank else ""
        told = [f"first divergence: {first.op}{where}", first.stack_line, first.sentence]
        self._end(stage, *(line for line in told if line))

    def _end(self, stage: str, *told: str) -> None:
        """A stage is over: what it has found, in one line or several."""
        self.found.stages[stage] = "; ".join(told)
        self._say(f"{stage}: {told[0]}")
        for line in told[1:]:
            self._say(f"  {line}")
        self._write()

    def _write(self) -> None:
        output = self._request.output
        with replacing(output / RESULT) as path:
            path.write_bytes(json_bytes(asdict(self.found)))
        with replacing(output / PAGE) as path:
            write_page(path, self.found, self._curves)


def _to_the_bit(compared: StepsComparison) -> StepsComparison:
    """The same, but that no difference is noise."""
    trends = [replace(one, noise=np.zeros_like(one.noise)) for one in compared.trends]
    partings = [find_parting(one, {}) for one in trends]
    first = min(partings, key=lambda one: (one.step is None, one.step or 0, one.rank))
    return replace(compared, trends=trends, parting=first)


def _steps(target: Path, golden: Path) -> Iterator[tuple[int, list[FolderPair]]]:
    """The ranks of each step that both sides have, in order."""
    by_step: dict[int, list[FolderPair]] = {}
    for pair in pair_folders(target, golden)[0]:
        by_step.setdefault(pair.target.key.step, []).append(pair)
    yield from sorted(by_step.items())


def _begins_before_the_update(comparison: Comparison) -> bool:
    """Whether there is a divergence, and not one inside an optimizer: optimizer.json tells more of that."""
    first, run = comparison.summary.first, comparison.target
    return first is not None and run.path.name != OPTIMIZER_FILE and run.parents.get(first.op) != "optimizer"


def _both_names(comparison: Comparison, name: str) -> tuple[str, str]:
    """The names of a call in the target and in the golden run; empty where only the other run makes it."""
    runs, pairs = (comparison.target, comparison.golden), comparison.evidence.pairs
    own = 0 if name in runs[0].ops else 1
    if name not in runs[own].ops:
        return name, ""
    columns = ("t_op", "g_op") if own == 0 else ("g_op", "t_op")
    partners = pairs.filter(pairs[columns[0]] == runs[own].ops.index(name))[columns[1]].drop_nulls()
    partner = runs[1 - own].ops[int(partners[0])] if len(partners) else ""
    return (name, partner) if own == 0 else (partner, name)


def _suspects(comparison: Comparison, first: Divergence) -> list[list[str]]:
    """The call where the difference begins, its neighbours and the module around it, by their names on either side."""
    run = comparison.target if first.op in comparison.target.ops else comparison.golden
    place = run.ops.index(first.op) if first.op in run.ops else 0
    near = [_both_names(comparison, name) for name in run.ops[max(0, place - _AROUND) : place + _AROUND + 1]]
    names = [[pair[at] for pair in near if pair[at]] for at in (0, 1)]
    # Where only one run makes this call, what the other calls in its place is in the same module.
    shared = _both_names(comparison, run.parents.get(first.op) or "")
    own = _both_names(comparison, first.op)
    for at, (chosen, side_run) in enumerate(zip(names, (comparison.target, comparison.golden), strict=True)):
        around = side_run.parents.get(own[at]) if own[at] else shared[at]
        if around and around.startswith("Module."):
            chosen.append(around.rpartition(".")[0] + ".")  # all of its calls
    # A list entry that begins as a module's name takes all calls inside; the rest of the name takes the module alone.
    return [[name.removeprefix("Module.") for name in chosen] for chosen in names]


def _gone(before: StepsComparison, after: StepsComparison, step: int, module: str) -> str:
    """How much of the difference of a step is gone: of the loss, otherwise of the worst output of a block."""
    rank = before.parting.rank
    sides = []
    for compared in (before, after):
        trend = next((one for one in compared.trends if one.rank == rank), compared.trends[0])
        row = trend.steps.tolist().index(step)
        sides.append(
            {
                name: float(value)
                for name, value in zip(trend.names, trend.difference[row].tolist(), strict=True)
                if name == "loss" or (name.startswith("output.") and name.endswith((".norm", ".max", ".mean")))
            }
        )
    what = "loss" if sides[0].get("loss") else max(sides[0], key=lambda name: sides[0][name], default="")
    was, now = sides[0].get(what, 0.0), sides[1].get(what, 0.0)
    if not was:
        return (
            f"with golden's values at {module}: no watched number of step {step} differed before, so this shows nothing"
        )
    title = "the loss" if what == "loss" else what.removeprefix("output.")
    share = max(0.0, 1 - now / was)
    return (f"with golden's values at {module}, {share:.0%} of the difference of {title} is gone "
            f"(relative difference {was:.2g} before, {now:.2g} now)")  # fmt: skip


def _description(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """What a program's processes told of themselves."""
    first = {key: facts[0].get(key) for key in ("model", "step", "optimizer", "others", "seeds", "settings", "steps")}
    return {**first, "processes": len(facts)}


def _words(told: dict[str, Any]) -> str:
    by = f"{told['optimizer']}.step()" if told["optimizer"] else "forward of the model"
    seeds = told["seeds"] or {}
    ours = [name for name, seed in seeds.items() if isinstance(seed, int)]
    own = [name for name, seed in seeds.items() if seed == "program"]
    words = [f"model {told['model']}", f"{told['steps']} steps, each one {by}"]
    if told.get("others"):
        words.append(
            f"updates of {told['others']} optimizers of other models count as part of the step in which they happen"
        )
    if told["processes"] > 1:
        words.append(f"{told['processes']} processes")
    if ours:
        words.append(f"seed {seeds[ours[0]]} set for {', '.join(ours)}")
    if own:
        words.append(f"the program seeds {', '.join(own)}")
    return "; ".join(words)
