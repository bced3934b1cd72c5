"""What a copy of weights did."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class WeightReport:
    """Parameters that were copied, and what the user should know."""

    copied: list[tuple[str, str]] = field(default_factory=list)
    """(target parameter, source parameter); a packed one stands once for each part."""
    notices: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Parameters of the target that no aligned pair speaks of: they have the values they had."""

    def __str__(self) -> str:
        lines = [f"{len(self.copied)} weights copied", *self.notices]
        if self.kept:
            lines.append(f"{len(self.kept)} keep their own values: {', '.join(self.kept[:5])}")
        return "\n".join(lines)
