"""The result of an alignment: which calls of one run belong to which of the other, why, and how sure that is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

# What a relation says about its two sides.
SAME = "same"  # one call each
FUSED = "fused"  # several calls of one side are one call of the other, concatenated
COMPOSITE = "composite"  # several calls of one side compute what one call of the other does
MODULE_CALL = "module and call"  # a module on one side, an API call on the other
RESIDUAL = "residual"  # one side's output has the residual added
KINDS = (SAME, FUSED, COMPOSITE, MODULE_CALL, RESIDUAL)

DOUBTFUL = 0.8


@dataclass(slots=True)
class Relation:
    """Calls that belong together.

    ``axis`` is the dimension along which fused outputs are concatenated; ``inside`` the side whose module adds the
    residual itself.
    """

    target: tuple[str, ...]
    golden: tuple[str, ...]
    rule: str
    reason: str
    confidence: float
    kind: str = SAME
    axis: int | None = None
    inside: str = ""

    @property
    def one_to_one(self) -> bool:
        """Whether this is one call against one."""
        return len(self.target) == len(self.golden) == 1


@dataclass(slots=True)
class Alone:
    """A call without a partner, and why it has none."""

    name: str
    why: str


@dataclass
class Alignment:
    """How two runs fit."""

    relations: list[Relation] = field(default_factory=list)
    target_alone: list[Alone] = field(default_factory=list)
    golden_alone: list[Alone] = field(default_factory=list)
    modules: tuple[int, int] = (0, 0)
    matched_modules: tuple[int, int] = (0, 0)
    best_score: float = 0.0
    notes: list[str] = field(default_factory=list)

    def by_rule(self) -> dict[str, int]:
        """How many relations each rule has found, the most fruitful first."""
        return dict(Counter(relation.rule for relation in self.relations).most_common())

    def doubtful(self) -> list[Relation]:
        """Relations that a person should look at, the least sure first."""
        found = [relation for relation in self.relations if relation.confidence < DOUBTFUL]
        return sorted(found, key=lambda relation: relation.confidence)

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be aligned."""
        return not self.relations


def mirrored(alignment: Alignment) -> Alignment:
    """The same alignment with the sides changed."""
    inside = {"target": "golden", "golden": "target"}
    return Alignment(
        relations=[
            replace(one, target=one.golden, golden=one.target, inside=inside.get(one.inside, ""))
            for one in alignment.relations
        ],
        target_alone=alignment.golden_alone,
        golden_alone=alignment.target_alone,
        modules=alignment.modules[::-1],
        matched_modules=alignment.matched_modules[::-1],
        best_score=alignment.best_score,
        notes=alignment.notes,
    )
