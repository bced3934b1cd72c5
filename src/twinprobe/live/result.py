"""What auto_diff gives back: true when the models agree, and everything that was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinprobe.live.calm import Found, differing
from twinprobe.live.causes import First
from twinprobe.live.findings import Finding
from twinprobe.live.trees import Branch, Calls, model_tree

if TYPE_CHECKING:
    import polars as pl


@dataclass
class Result:
    """The answer. ``bool(result)`` is whether the two models agree in everything that decides."""

    base: str
    raw: str
    found: list[Found]
    first: First | None
    base_calls: Calls
    raw_calls: Calls
    steps: int = 1
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    weights_copied: bool = False  # from base to raw, before the first run

    def __bool__(self) -> bool:
        return self.first is None

    @property
    def aligned(self) -> bool:
        """Whether the two models agree."""
        return self.first is None

    @cached_property
    def findings(self) -> list[Finding]:
        """Every pair of tensors, step by step."""
        return [one for part in self.found for one in part]

    @cached_property
    def table(self) -> pl.DataFrame:
        """One row per pair of tensors, in the order of execution."""
        from twinprobe.live.tables import table_of

        return table_of(self.findings)

    @cached_property
    def base_tree(self) -> list[Branch]:
        """The calls of the base model inside one another, with marks."""
        return model_tree(self.base_calls, self._shown, self.first.base if self.first else "", golden=True)

    @cached_property
    def raw_tree(self) -> list[Branch]:
        """The calls of the raw model inside one another, with marks."""
        return model_tree(self.raw_calls, self._shown, self.first.raw if self.first else "", golden=False)

    @property
    def _shown(self) -> list[Finding]:
        """What the marks in the trees tell of: the step and phase of the first difference."""
        at = (self.first.step, self.first.phase) if self.first is not None else None
        return [one for one in self.findings if at is None or (one.step, one.phase) == at]

    @property
    def differences(self) -> list[Finding]:
        """The pairs that differ, those first that came first."""
        return [one for part in self.found for one in differing(part)]

    def counts(self) -> dict[str, int]:
        """How many pairs were compared, how many differ, and how many of these decide."""
        differing = self.differences
        return {
            "compared": sum(map(len, self.found)),
            "differ": len(differing),
            "decide": sum(one.decides for one in differing),
        }

    @property
    def written_to(self) -> str:
        """Which model was written to, in words; empty where none was."""
        return f"copied from base {self.base} to raw {self.raw}" if self.weights_copied else ""

    def to_dict(self) -> dict[str, Any]:
        """The answer without the table, for machines."""
        first = self.first
        shown = None
        if first is not None:
            shown = {
                "step": first.step, "phase": first.phase, "raw": first.raw, "base": first.base, "cause": first.cause,
                "why": first.why, "raw_line": first.raw_line, "base_line": first.base_line,
            }  # fmt: skip
        return {
            "aligned": self.aligned, "base": self.base, "raw": self.raw, "steps": self.steps,
            "weights_copied": self.weights_copied, "counts": self.counts(), "first": shown, "notes": list(self.notes),
        }  # fmt: skip

    def save(self, folder: str | Path, formats: Sequence[str] = ("csv", "json", "html")) -> list[Path]:
        """Write the table as ``auto_diff.csv`` and so on into a folder; other files there stay as they are."""
        from twinprobe.live.files import write_files

        written = write_files(self, Path(folder), formats)
        self.files += written
        return written

    def show(self) -> None:
        """Print the report."""
        from twinprobe.live.console import print_result

        print_result(self)

    def __repr__(self) -> str:
        counts = self.counts()
        if self.first is None:
            inner = f", but {counts['differ']} inner ones do not decide and differ" if counts["differ"] else ""
            agree = counts["compared"] - counts["differ"]
            return f"<aligned: {self.base} and {self.raw}, {agree} pairs agree{inner}>"
        return (
            f"<not aligned: {self.base} and {self.raw}, {counts['differ']} of {counts['compared']} pairs: {self.first}>"
        )

    def _repr_html_(self) -> str:
        from twinprobe.live.page import fragment

        return fragment(self)
