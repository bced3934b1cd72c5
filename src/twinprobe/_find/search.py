"""From two programs to the first call that differs: watch, record the first differing step, keep the suspects' tensors.

Each stage is a folder of plain recordings below the output folder: ``watch``, ``step`` and ``tensors``, each with
``target`` and ``golden``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe._align.folders import FolderPair, pair_folders
from twinprobe._align.matcher import MappingOptions, build_matcher
from twinprobe._compare.one import Comparison, Options, compare_paths
from twinprobe._compare.ranks import rank_facts
from twinprobe._compare.steps import compare_steps
from twinprobe._find.page import FindResult, curves, write_page
from twinprobe._find.programs import Task, run_program, side
from twinprobe._judge.across.ranks import find_culprits
from twinprobe._judge.across.steps import StepsComparison, find_parting
from twinprobe._judge.describe import unsized
from twinprobe._judge.rules import Thresholds
from twinprobe._judge.search import ARGUMENT
from twinprobe._judge.search import PARAMETER_DIFFERS as PARAMETER
from twinprobe._judge.summary import Divergence
from twinprobe._report.console import json_bytes, place_in_code
from twinprobe._report.files import prepare_folder, replacing, result_stem, timestamp_now
from twinprobe._report.overview import write_steps
from twinprobe._report.tables import write_reports
from twinprobe._runs.names import OPTIMIZER
from twinprobe._runs.run import DUMP, OPTIMIZER_FILE, PART, open_run, run_folders
from twinprobe._runs.watch import watch_files
from twinprobe.errors import BadInput, TwinProbeError

WATCH, STEP, TENSORS, REPLAY, CONFIRM = "watch", "step", "tensors", "replay", "confirm"
REPRODUCER = "reproducer"
PAGE, RESULT = "find.html", "find.json"
SEED = 1234
_TRIES = 3  # steps that are recorded until one shows where the difference begins
_ROUNDING = 64.0  # epsilons: a tolerance for what the judge takes for noise
_AROUND = 3  # calls before and after a suspect whose tensors are kept
_FACTS = ("model", "step", "optimizer", "others", "seeds", "settings", "steps")  # that a page shows of a program


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


Say = Callable[[str], None]


def search(request: Request, say: Say) -> FindResult:
    """Run all stages; ``say`` gets a line for each result. Results are written even after Ctrl-C."""
    return _Search(request, say).run()


class _Search:
    def __init__(self, request: Request, say: Say) -> None:
        self._request = request
        self._say = say
        self._sides = (side("target", request.target), side("golden", request.golden))
        self._recordings = [program.recording for program in self._sides if program.recording is not None]
        self._twice = not self._recordings and self._sides[0] == replace(self._sides[1], name="target")
        exact = request.exact or self._twice
        self.result = FindResult({"program": request.target}, {"program": request.golden}, exact)
        self._curves: dict[str, Any] = {}
        self._updates: dict[str, tuple[tuple[int, int], ...]] = {}
        self._steps: list[tuple[int, int]] = []
        """The numbers that each pair of watched steps has on either side."""

    def run(self) -> FindResult:
        output = self._request.output
        if not self._request.resume and any((output / name).exists() for name in (RESULT, WATCH, STEP)):
            raise BadInput(
                "holds an earlier search",
                where=output,
                hint="add --resume to continue it, or choose another folder with -o",
            )
        prepare_folder(output)
        try:
            if any(not watch_files(recording) for recording in self._recordings):
                self._search_recording()
            else:
                self._watch()
                if self.result.agrees is False:
                    self._record_step()
        except KeyboardInterrupt:
            self.result.interrupted = True
            watched = [output / WATCH / program.name for program in self._sides]
            if not self.result.stages and all(map(watch_files, watched)):  # both have come some way
                with suppress(TwinProbeError):
                    self._find_step(watched)
            self.result.notes.append("interrupted; --resume continues from here")
            raise
        finally:
            self._write()
        return self.result

    # -- the stages -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Run both programs and find the first step that differs."""
        first, count = self._request.from_step, self._request.steps
        folders = self._run(WATCH, [{"level": "watch"}] * 2, [None if count is None else first + count - 1] * 2)
        self._find_step(folders)

    def _find_step(self, folders: Sequence[Path]) -> None:
        """The first step that differs in what was watched."""
        compared = compare_steps(folders[0], folders[1])
        if self.result.exact:
            compared = _to_the_bit(compared)
        result, parting = self.result, compared.parting
        result.agrees, result.step = parting.step is None, parting.step
        result.rank = f"rank{parting.rank}" if len(compared.trends) > 1 else ""
        result.notes += compared.notes
        trend = next(candidate for candidate in compared.trends if candidate.rank == parting.rank)
        self._steps = list(zip(trend.steps.tolist(), trend.golden_steps.tolist(), strict=True))
        self._curves = curves(trend, parting.module)
        files = write_steps(compared, prepare_folder(self._request.output / WATCH), timestamp_now())
        result.files += [f"{WATCH}/{file.name}" for file in files if file.suffix == ".html"]
        sentence = parting.sentence[:1].upper() + parting.sentence[1:] + "."
        if self._twice and result.agrees:
            sentence = f"The program is deterministic: both runs are equal in all {len(self._steps)} steps."
        result.sentence = sentence
        self._end(WATCH, sentence)
        if result.agrees and any(candidate.difference.any() for candidate in compared.trends):
            hint = "--exact looks for the first call that differs at all"
            self._say(f"  {hint}")
            result.notes.append(hint)

    def _record_step(self) -> None:
        """Record the first differing step on both sides, and find the call where it begins."""
        result = self.result
        index = next(place for place, (step, _) in enumerate(self._steps) if step == result.step)
        tried: set[int] = set()
        while True:
            tried.add(index)
            numbers = self._steps[index]
            folders = self._run(STEP, [{"level": "mix", "step": [step]} for step in numbers], list(numbers))
            paths = [folder / f"step{step}" for folder, step in zip(folders, numbers, strict=True)]
            chosen = self._first_of(next(_steps(*paths))[1])
            first = chosen[1].summary.first if chosen else None
            # A step that begins with other parameters was parted by the update before it, however little of that was
            # watched; one that agrees is followed by the one that was seen to differ.
            after = index + 1 if first is None else index - 1 if first.begins == PARAMETER else index
            if after in tried or len(tried) == _TRIES or not 0 <= after < len(self._steps):
                break
            self._say(f"  step {numbers[0]} {'agrees' if first is None else 'begins with other parameters'}: "
                      f"looking at step {self._steps[after][0]}")  # fmt: skip
            index = after
        result.step = numbers[0]
        if chosen is None:
            self._end(STEP, f"Step {result.step} agrees when it is recorded: the result changes from run to run.")
            result.notes.append("run find with one program twice, to see which call is not deterministic")
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
                call = find_call(run, name)
                calls.append(read_calls(run, [call])[call])
            replayed = replay_pair(calls[0], calls[1])
            lines = [replayed.sentence]
            if replayed.off != "neither":
                folder = self._request.output / REPRODUCER
                write_reproducer(calls[0], calls[1], folder, room=ROOM)
                self.result.reproducer = f"{REPRODUCER}/reproduce.py"
                lines.append(f"{folder / 'reproduce.py'} reproduces it without TwinProbe")
        except TwinProbeError as error:
            lines = [f"the call cannot be run again: {error}"]
        self._end(REPLAY, *lines)

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
        program = self._sides[0]
        self._say(f"{CONFIRM}: running the target program with golden's values at {first.module}")
        folder = request.output / CONFIRM / program.name
        run_program(program, folder, task, reuse=request.resume)
        before = compare_steps(*(request.output / WATCH / name for name in ("target", "golden")))
        after = compare_steps(folder, request.output / WATCH / "golden")
        self._end(CONFIRM, _gone(before, after, step, first.module))

    def _search_recording(self) -> None:
        """A recording stands in place of a program: the other program is recorded in the same way, and compared."""
        runs = [run_folders(recording) for recording in self._recordings]
        index = next((file for folder in runs[0] for file in folder.files()), None)
        if index is None:
            raise BadInput("holds no recorded run", where=self._recordings[0])
        recorded = open_run(index)
        wanted = sorted({max(folder.key.step, 0) for folder in runs[0]})
        record = {"level": recorded.level, "task": recorded.task, "step": wanted}
        folders = self._run(STEP, [record] * 2, [wanted[-1]] * 2)
        result = self.result
        compared = 0
        for step, pairs in _steps(*folders):
            chosen = self._first_of(pairs)
            compared += 1
            if chosen is not None:
                result.agrees, result.step = False, step
                result.sentence = f"Step {step} is the first recorded one that differs."
                self._take(*chosen, STEP)
                return
        result.agrees = True
        result.sentence = f"The runs agree in all {compared} recorded steps."
        self._end(STEP, result.sentence)

    # -- programs ---------------------------------------------------------------------------------------------------

    def _run(self, stage: str, records: list[dict[str, Any]], last: Sequence[int | None]) -> list[Path]:
        """The folders of both sides: programs are run, recordings are taken as they are."""
        folders = []
        request = self._request
        facts_of_both: list[list[dict[str, Any]]] = []
        for program, record, end in zip(self._sides, records, last, strict=True):
            if program.recording is not None:
                if stage != WATCH and watch_files(program.recording):
                    raise BadInput(
                        f"was only watched: step {end} has no calls to compare",
                        where=program.recording, hint="give the command in place of this recording",
                    )  # fmt: skip
                folders.append(program.recording)
                continue
            exact = self.result.exact and record["level"] == "mix" and "task" not in record
            digests = {"summary_mode": "md5"} if exact else {}
            updates = self._updates.get(program.name, ())
            task = Task({**record, **digests}, request.seed, request.from_step, end, updates)
            folder = request.output / stage / program.name
            self._say(f"{stage}: running the {program.name} program: {program.text}")
            facts = run_program(program, folder, task, reuse=request.resume)
            folders.append(folder)
            facts_of_both.append(facts)
            if stage == WATCH:
                self._updates[program.name] = tuple((length, times) for length, times in facts[0].get("updates", ()))
            described = getattr(self.result, program.name)
            if "model" not in described:  # what its processes recorded of themselves, the first run
                described |= {key: facts[0].get(key) for key in _FACTS} | {"processes": len(facts)}
                self._say(f"  {program.name}: {_words(described)}")
        if len(facts_of_both) == 2 and not self.result.settings:
            settings = [facts[0]["settings"] for facts in facts_of_both]
            pairs = {key: [own.get(key) for own in settings] for key in settings[0] | settings[1]}
            self.result.settings = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
            for key, pair in self.result.settings.items():
                self._say(f"  the setting {key} differs: {pair[0]} in target, {pair[1]} in golden")
        return folders

    # -- comparing --------------------------------------------------------------------------------------------------

    def _first_of(self, pairs: list[FolderPair], *, updates: bool = True) -> tuple[FolderPair, Comparison] | None:
        """Where a step's difference begins: on which rank, in a call or in an optimizer's update.

        A difference that noise explains counts only where nothing else differs, since the step is known to differ.
        """
        tolerances = [0.0] if self.result.exact else [None, _ROUNDING]
        for rounding in tolerances:
            options = Options(build_matcher(MappingOptions()), Thresholds(rounding=rounding))
            computed = self._compared(pairs, (DUMP, PART), options)
            ranks = [max(pair.target.key.rank, 0) for pair, _ in computed]
            facts = [rank_facts(compared, rank) for rank, (_, compared) in zip(ranks, computed, strict=True)]
            order = {culprit.rank: place for place, culprit in enumerate(find_culprits(facts))}
            computed.sort(key=lambda pair: order.get(max(pair[0].target.key.rank, 0), len(order)))
            updated = self._compared(pairs, (OPTIMIZER_FILE,), options) if updates else []
            before = [pair for pair in computed if _begins_before_the_update(pair[1])]
            differing = [pair for pair in (*updated, *computed) if pair[1].summary.first is not None]
            if before or differing:
                return (before or differing)[0]
        return None

    def _compared(
        self, pairs: list[FolderPair], names: tuple[str, ...], options: Options
    ) -> list[tuple[FolderPair, Comparison]]:
        compared = []
        for pair in pairs:
            files = [
                next((folder.path / name for name in names if (folder.path / name).is_file()), None)
                for folder in (pair.target, pair.golden)
            ]
            if files[0] is not None and files[1] is not None:
                compared.append((pair, compare_paths(files[0], files[1], options)))
        return compared

    def _take(self, pair: FolderPair, comparison: Comparison, stage: str) -> None:
        """Keep the first divergence of a stage as the result so far; the whole table becomes a page of its own."""
        summary, result = comparison.summary, self.result
        first = summary.first
        assert first is not None
        result.first, result.rank = asdict(first), "" if pair.target.by_process else pair.target.label
        # One setting of an optimizer changes all that it writes.
        setting = first.begins == ARGUMENT and first.op.startswith(OPTIMIZER)
        result.others = [
            asdict(item) for item in summary.others
            if not (setting and item.begins == ARGUMENT and unsized(item) == unsized(first))
        ]  # fmt: skip
        if stage == STEP:  # the whole step was recorded, so that its results are there
            result.results = [asdict(item) for item in summary.results]
        stem = result_stem(timestamp_now(), pair.target.label)
        table = comparison.table()
        files = write_reports(table, replace(summary, rank=result.rank), self._request.output / stage, stem, ["html"])
        result.files += [f"{stage}/{file.name}" for file in files]
        where = f" ({result.rank})" if result.rank else ""
        lines = [f"first divergence: {first.op}{where}", place_in_code(first.stack_line), first.sentence]
        self._end(stage, *(line for line in lines if line))

    def _end(self, stage: str, *lines: str) -> None:
        """A stage is over: print and keep its result, one line or several."""
        self.result.stages[stage] = "; ".join(lines)
        self._say(f"{stage}: {lines[0]}")
        for line in lines[1:]:
            self._say(f"  {line}")
        self._write()

    def _write(self) -> None:
        output = self._request.output
        with replacing(output / RESULT) as path:
            path.write_bytes(json_bytes(asdict(self.result)))
        with replacing(output / PAGE) as path:
            write_page(path, self.result, self._curves)


def _to_the_bit(compared: StepsComparison) -> StepsComparison:
    """The same comparison with no noise: every difference counts."""
    trends = [replace(trend, noise=np.zeros_like(trend.noise)) for trend in compared.trends]
    partings = [find_parting(trend, {}) for trend in trends]
    first = min(partings, key=lambda parting: (parting.step is None, parting.step or 0, parting.rank))
    return replace(compared, trends=trends, parting=first)


def _steps(target: Path, golden: Path) -> Iterator[tuple[int, list[FolderPair]]]:
    """The ranks of each step that both sides have, in order."""
    by_step: dict[int, list[FolderPair]] = {}
    for pair in pair_folders(target, golden)[0]:
        by_step.setdefault(pair.target.key.step, []).append(pair)
    yield from sorted(by_step.items())


def _begins_before_the_update(comparison: Comparison) -> bool:
    """Whether there is a divergence that is not inside an optimizer, of which optimizer.json tells more."""
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
    names = [[name for name in side_names if name] for side_names in zip(*near, strict=True)]
    # Where only one run makes this call, what the other calls in its place is in the same module.
    shared = _both_names(comparison, run.parents.get(first.op) or "")
    both = zip(names, (comparison.target, comparison.golden), _both_names(comparison, first.op), shared, strict=True)
    for chosen, side_run, own, shared_module in both:
        around = side_run.parents.get(own) if own else shared_module
        if around and around.startswith("Module."):
            chosen.append(around.rpartition(".")[0] + ".")  # all of its calls
    # A list entry that begins as a module's name takes all calls inside; the rest of the name takes the module alone.
    return [[name.removeprefix("Module.") for name in chosen] for chosen in names]


def _gone(before: StepsComparison, after: StepsComparison, step: int, module: str) -> str:
    """How much of the difference of a step is gone: of the loss, otherwise of the worst output of a block."""
    rank = before.parting.rank
    sides = []
    for compared in (before, after):
        trend = next((candidate for candidate in compared.trends if candidate.rank == rank), compared.trends[0])
        row = trend.steps.tolist().index(step)
        sides.append(
            {
                name: float(value)
                for name, value in zip(trend.names, trend.difference[row].tolist(), strict=True)
                if name == "loss" or (name.startswith("output.") and name.endswith((".norm", ".max", ".mean")))
            }
        )
    series = "loss" if sides[0].get("loss") else max(sides[0], key=lambda name: sides[0][name], default="")
    was, now = sides[0].get(series, 0.0), sides[1].get(series, 0.0)
    if not was:
        return (
            f"with golden's values at {module}: no watched number of step {step} differed before, so this shows nothing"
        )
    title = "the loss" if series == "loss" else series.removeprefix("output.")
    share = max(0.0, 1 - now / was)
    return (f"with golden's values at {module}, {share:.0%} of the difference of {title} is gone "
            f"(relative difference {was:.2g} before, {now:.2g} now)")  # fmt: skip


def _words(facts: dict[str, Any]) -> str:
    by = f"{facts['optimizer']}.step()" if facts["optimizer"] else "forward of the model"
    seeds = facts["seeds"] or {}
    ours = [name for name, seed in seeds.items() if isinstance(seed, int)]
    own = [name for name, seed in seeds.items() if seed == "program"]
    words = [f"model {facts['model']}", f"{facts['steps']} steps, each one {by}"]
    if facts.get("others"):
        words.append(
            f"updates of {facts['others']} optimizers of other models count as part of the step in which they happen"
        )
    if facts["processes"] > 1:
        words.append(f"{facts['processes']} processes")
    if ours:
        words.append(f"seed {seeds[ours[0]]} set for {', '.join(ours)}")
    if own:
        words.append(f"the program seeds {', '.join(own)}")
    return "; ".join(words)
