"""What a comparison found, in a form that every report can show."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One of the two runs: where it is and what was recorded."""

    path: str
    framework: str
    task: str
    level: str
    ops: int
    rows: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """A place where the runs part. ``order`` is its row in the result table, counted from zero."""

    op: str
    row: str
    golden_row: str
    stack_line: str
    target_values: dict[str, str]
    golden_values: dict[str, str]
    relative_error: float | None
    sentence: str
    origin: str
    order: int
    module: str = ""
    """The path of the module around the call, or the module's own."""
    argument: str = ""
    begins: str = ""
    """How it begins: output, argument, parameter, outside, between, extra, missing or random."""
    kinds: list[dict[str, Any]] = field(default_factory=list)
    """What kind of difference it is: name, sentence and confidence of each that holds, the surest first."""
    error_eps: float | None = None
    """The error in epsilons of the coarsest dtype on the way."""
    expected_eps: float | None = None
    times_noise: float | None = None
    """The error in multiples of what rounding and the inputs' errors explain."""

    @property
    def call(self) -> str:
        """The recorded call: ``op`` under the name that people look for."""
        return self.op

    @property
    def line(self) -> str:
        """The line of the user's code that made the call; empty where stacks were not recorded."""
        return self.stack_line

    @property
    def values(self) -> dict[str, tuple[str, str]]:
        """Both sides' dtype, shape and statistics: (target, golden)."""
        names = dict.fromkeys([*self.target_values, *self.golden_values])
        return {name: (self.target_values.get(name, ""), self.golden_values.get(name, "")) for name in names}

    @property
    def kind(self) -> str:
        """The likeliest kind of difference, or how it begins where none was recognised."""
        return str(self.kinds[0]["name"]) if self.kinds else self.begins

    @property
    def evidence(self) -> str:
        """Why this is where the runs part, in a sentence."""
        return self.sentence

    def _repr_html_(self) -> str:
        from twinprobe._notebook import card

        facts = [("call", self.op), ("module", self.module), ("kind", self.kind), ("why", self.sentence),
                 ("line", self.stack_line or "not recorded")]  # fmt: skip
        table = [("", "target", "golden"), *((name, *both) for name, both in self.values.items())]
        return card("first divergence", facts, good=False, table=table)


@dataclass(frozen=True, slots=True)
class Result:
    """What the run is made for (loss, outputs, gradients, updates): whether it agrees, and how far off it is."""

    name: str
    agrees: bool
    values: int
    differing: int
    worst: float
    worst_eps: float
    where: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of a comparison and its first divergence. ``verdicts`` counts pass, warning and error rows."""

    mode: str
    target: RunInfo
    golden: RunInfo
    rows: int
    matched: int
    target_only: int
    golden_only: int
    verdicts: dict[str, int]
    first: Divergence | None
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    rank: str = ""
    results: list[Result] = field(default_factory=list)
    """Whether loss, outputs, gradients and updated parameters agree; empty where that was not weighed."""
    others: list[Divergence] = field(default_factory=list)
    """Further beginnings that the first does not explain."""
    unread: int = 0
    """Rows with a tensor that could not be read: their recorded statistics were compared, where there are any."""
    lost: list[str] = field(default_factory=list)
    """What was asked for and is not in the result: ranks that could not be read, placements that contradict."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, texts and numbers, with the field names as keys."""
        return asdict(self)


def unread_rows(count: int, where: str = "") -> str:
    """Say how many rows, ``where`` in the run, could not be read."""
    return f"{count:,} row{'' if count == 1 else 's'}{where} could not be read"
