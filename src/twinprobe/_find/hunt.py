"""From two programs to the first call that differs: watch, record the first differing step, keep the suspects' tensors.

Each stage is a folder of plain recordings below the output folder: ``watch``, ``step`` and ``tensors``, each with
``target`` and ``golden``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinprobe._align.folders import FolderPair, pair_folders
from twinprobe._align.matcher import MappingOptions, build_matcher
from twinprobe._compare.one import Comparison, Options, compare_paths
from twinprobe._find.page import write_page
from twinprobe._find.programs import Ran, Task, run_program, side
from twinprobe._judge.verdicts import Thresholds
from twinprobe._report.console import json_bytes
from twinprobe._report.files import prepare_folder, replacing, result_stem, timestamp_now
from twinprobe._report.tables import write_reports
from twinprobe._runs.run import DUMP, OPTIMIZER_FILE, PART, run_folders
from twinprobe.errors import BadInput, NothingToCompare

if TYPE_CHECKING:
    from twinprobe._judge.origin import Divergence

WATCH, STEP, TENSORS = "watch", "step", "tensors"
PAGE, RESULT = "find.html", "find.json"
SEED = 1234
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
    last_step: int | None = None
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
        twice = self._sides[0].words == self._sides[1].words and self._sides[0].variables == self._sides[1].variables
        self._twice = twice and bool(self._sides[0].words)
        exact = request.exact or self._twice
        self.found = Found({"program": request.target}, {"program": request.golden}, exact)
        self._ran: dict[tuple[str, str], Ran] = {}
        self._curves: dict[str, Any] = {}

    def run(self) -> Found:
        output = self._request.output
        if not self._request.resume and any((output / name).exists() for name in (RESULT, WATCH, STEP, TENSORS)):
            raise BadInput(
                "holds an earlier hunt", where=output, hint="--resume goes on with it; or choose another folder with -o"
            )
        prepare_folder(output)
        try:
            self._watch()
            if self.found.agrees is False:
                self._record_step()
        except KeyboardInterrupt:
            self.found.interrupted = True
            self.found.notes.append("interrupted; --resume goes on from here")
            raise
        finally:
            self._write()
        return self.found

    # -- the stages -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Run both programs and find the first step that differs."""
        last = None if self._request.steps is None else self._request.from_step + self._request.steps - 1
        folders = self._run(WATCH, {"level": "L0", "sketch": False}, last)
        self._note_programs()
        found = self.found
        for at, pairs in _steps(*folders):
            compared = self._compare(pairs)
            found.last_step = at
            if any(one.summary.first is not None for _, one in compared):
                found.step = at
                break
        found.agrees = found.step is None
        counted = _count_steps(*folders)
        if found.agrees:
            agree = "are equal in every bit that was watched" if found.exact else "agree"
            found.sentence = f"The runs {agree} in all {counted} steps."
            if self._twice:
                found.sentence = f"The program is deterministic: both runs are equal in all {counted} steps."
        else:
            before = "differ from the first step on" if self._is_first(found.step, folders[0]) else (
                f"agree up to step {found.step - 1 if found.step else 0} and differ from step {found.step} on"
            )  # fmt: skip
            found.sentence = f"The runs {before}."
        self._end(WATCH, found.sentence)

    def _record_step(self) -> None:
        """Record the first differing step on both sides, and find the call where it begins."""
        found, step = self.found, self.found.step
        assert step is not None
        folders = self._run(STEP, {"level": "mix", "step": [step]}, step)
        compared = self._compare([pair for at, pairs in _steps(*folders) if at in (step, -1) for pair in pairs])
        chosen = next((pair_of for pair_of in compared if _begins_before_the_update(pair_of[1])), None)
        chosen = chosen or next((pair_of for pair_of in reversed(compared) if pair_of[1].summary.first), None)
        if chosen is None:
            self._end(STEP, f"Step {step}, recorded once more, agrees: the programs are not deterministic.")
            found.notes.append("run find with one program twice, to see which call is not deterministic")
            return
        self._take(*chosen, STEP)
        if chosen[1].target.path.name != OPTIMIZER_FILE:
            self._keep_tensors(chosen[1], step)

    def _keep_tensors(self, comparison: Comparison, step: int) -> None:
        """Record the suspect and its neighbours once more, with their tensors, and judge again."""
        if any(one.recording is not None for one in self._sides):
            return
        first = comparison.summary.first
        assert first is not None
        names = _suspects(comparison, first)
        records = [{"level": "mix", "task": "tensor", "step": [step], "list": side_names} for side_names in names]
        folders = self._run(TENSORS, records, step)
        try:
            compared = self._compare([pair for _, pairs in _steps(*folders) for pair in pairs])
        except NothingToCompare as error:
            self._end(TENSORS, f"The suspects could not be judged again: {error}")
            return
        chosen = next(((pair, one) for pair, one in compared if one.summary.first is not None), None)
        if chosen is not None and chosen[1].target.path.name != OPTIMIZER_FILE:
            self._take(*chosen, TENSORS)
        else:
            self._end(TENSORS, "The suspects' tensors agree: the difference did not come again.")

    # -- programs ---------------------------------------------------------------------------------------------------

    def _run(self, stage: str, record: dict[str, Any] | list[dict[str, Any]], last: int | None) -> list[Path]:
        """The folders of both sides: programs are run, recordings are taken as they are."""
        records = record if isinstance(record, list) else [record, record]
        folders = []
        for one, chosen in zip(self._sides, records, strict=True):
            if one.recording is not None:
                folders.append(one.recording)
                continue
            digests = {"summary_mode": "md5"} if self.found.exact and "task" not in chosen else {}
            task = Task({**chosen, **digests}, self._request.seed, self._request.from_step, last)
            folder = self._request.output / stage / one.name
            self._say(f"{stage}: running the {one.name} program: {one.text}")
            ran = run_program(one, folder, task, reuse=self._request.resume)
            self._ran[stage, one.name] = ran
            folders.append(folder)
        return folders

    def _note_programs(self) -> None:
        """What the programs told of themselves: model, steps, seeds and settings."""
        told = [self._ran[WATCH, one.name].facts if one.recording is None else [] for one in self._sides]
        for name, facts in zip(("target", "golden"), told, strict=True):
            if facts:
                described = getattr(self.found, name)
                described |= {key: facts[0].get(key) for key in ("model", "step", "optimizer", "seeds", "settings")}
                described |= {"processes": len(facts), "steps": facts[0].get("steps")}
                self._say(f"  {name}: {_description(described)}")
        if all(told):
            mine, reference = (facts[0]["settings"] for facts in told)
            differing = {key: [mine.get(key), reference.get(key)] for key in mine | reference}
            self.found.settings = {key: pair for key, pair in differing.items() if pair[0] != pair[1]}
            for key, pair in self.found.settings.items():
                self._say(f"  the setting {key} differs: {pair[0]} in target, {pair[1]} in golden")

    # -- comparing --------------------------------------------------------------------------------------------------

    def _compare(self, pairs: list[FolderPair]) -> list[tuple[FolderPair, Comparison]]:
        """Compare a step's ranks: what was computed, then what the optimizer saw and did."""
        rounding = 0.0 if self.found.exact else None
        options = Options(build_matcher(MappingOptions()), Thresholds(rounding=rounding))
        compared = []
        for names in ((DUMP, PART), (OPTIMIZER_FILE,)):
            for pair in pairs:
                files = [_present(folder.path, names) for folder in (pair.target, pair.golden)]
                if files[0] is not None and files[1] is not None:
                    compared.append((pair, compare_paths(files[0], files[1], options)))
        if not compared:
            raise NothingToCompare("nothing was recorded on both sides", where=self._request.output)
        return compared

    def _take(self, pair: FolderPair, comparison: Comparison, stage: str) -> None:
        """The first divergence of a stage is what is known now; its whole table becomes a page of its own."""
        summary, found = comparison.summary, self.found
        first = summary.first
        assert first is not None
        found.first, found.rank = asdict(first), pair.target.label if not pair.target.by_process else ""
        found.others = [asdict(one) for one in summary.others]
        if stage == STEP:  # the whole step was recorded, so that its results are there
            found.results = [asdict(one) for one in summary.results]
        stem = result_stem(timestamp_now(), pair.target.label)
        table = comparison.table()
        files = write_reports(table, replace(summary, rank=found.rank), self._request.output / stage, stem, ["html"])
        found.files += [str(file.relative_to(self._request.output)) for file in files]
        where = f" ({first.stack_line})" if first.stack_line else ""
        self._end(stage, f"First divergence: {first.op}{where}: {first.sentence}")

    def _end(self, stage: str, sentence: str) -> None:
        self.found.stages[stage] = sentence
        self._say(f"{stage}: {sentence}")
        self._write()

    @staticmethod
    def _is_first(step: int | None, folder: Path) -> bool:
        return step == min(one.key.step for one in run_folders(folder))

    def _write(self) -> None:
        output = self._request.output
        with replacing(output / RESULT) as path:
            path.write_bytes(json_bytes(asdict(self.found)))
        with replacing(output / PAGE) as path:
            write_page(path, self.found, self._curves)


def _steps(target: Path, golden: Path) -> Iterator[tuple[int, list[FolderPair]]]:
    """The ranks of each step that both sides have, in order."""
    pairs, _, _ = pair_folders(target, golden)
    by_step: dict[int, list[FolderPair]] = {}
    for pair in pairs:
        by_step.setdefault(pair.target.key.step, []).append(pair)
    yield from sorted(by_step.items())


def _count_steps(target: Path, golden: Path) -> int:
    return sum(1 for _ in _steps(target, golden))


def _present(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _begins_before_the_update(comparison: Comparison) -> bool:
    """Whether there is a divergence, and not one inside an optimizer: optimizer.json tells more of that."""
    first, run = comparison.summary.first, comparison.target
    return first is not None and run.path.name != OPTIMIZER_FILE and run.parents.get(first.op) != "optimizer"


def _suspects(comparison: Comparison, first: Divergence) -> tuple[list[str], list[str]]:
    """The call where the difference begins and its neighbours, by the names they have on either side."""
    target, golden = comparison.target, comparison.golden
    place = target.ops.index(first.op) if first.op in target.ops else 0
    near = range(max(0, place - _AROUND), min(len(target.ops), place + _AROUND + 1))
    pairs = comparison.evidence.pairs
    partners = {
        (row["t_op"], row["g_op"])
        for row in pairs.select("t_op", "g_op").unique().iter_rows(named=True)
        if row["t_op"] is not None and row["g_op"] is not None and row["t_op"] in near
    }
    names = [target.ops[at] for at in near], [golden.ops[at] for _, at in sorted(partners)]
    # A list entry that begins as a module's name takes all calls inside; the rest of the name takes the module alone.
    return tuple([name.removeprefix("Module.") for name in side_names] for side_names in names)  # type: ignore[return-value]


def _description(told: dict[str, Any]) -> str:
    by = f"{told['optimizer']}.step()" if told["step"] == "optimizer" and told["optimizer"] else "forward of the model"
    seeds = told["seeds"] or {}
    ours = [name for name, seed in seeds.items() if isinstance(seed, int)]
    own = [name for name, seed in seeds.items() if seed == "program"]
    words = [f"model {told['model']}", f"{told['steps']} steps, each one {by}"]
    if told["processes"] > 1:
        words.append(f"{told['processes']} processes")
    if ours:
        words.append(f"seed {seeds[ours[0]]} set for {', '.join(ours)}")
    if own:
        words.append(f"the program seeds {', '.join(own)}")
    return "; ".join(words)
