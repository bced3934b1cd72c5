"""An alignment on the terminal: what fits, by which rule, what stays alone and why, what is doubtful."""

from __future__ import annotations

from collections import Counter

from twinprobe.align.auto.alignment import DOUBTFUL, Alignment, Alone
from twinprobe.report.text import visible
from twinprobe.runs.names import CONTAINERS

_SHOWN = 8


def alignment_lines(alignment: Alignment) -> list[str]:
    """The summary, line by line."""
    found, of = alignment.matched_modules, alignment.modules
    lines = []
    if any(of):
        lines.append(f"{found[0]} of {of[0]} modules fit {found[1]} of {of[1]}; {_calls(alignment)} API calls fit, too")
    else:
        lines.append(f"{_calls(alignment)} API calls fit; no modules were recorded")
    width = max((len(rule) for rule in alignment.by_rule()), default=0)
    lines += [f"  {rule:<{width}}  {count:>6}" for rule, count in alignment.by_rule().items()]
    lines += _alone_lines("target", alignment.target_alone) + _alone_lines("golden", alignment.golden_alone)
    doubtful = alignment.doubtful()
    if doubtful:
        lines.append(f"{len(doubtful)} pairs are doubtful (confidence below {DOUBTFUL}):")
        for relation in doubtful[:_SHOWN]:
            names = " + ".join(relation.target), " + ".join(relation.golden)
            lines.append(f"  {relation.confidence:.2f}  {names[0]} = {names[1]} ({relation.rule})")
        lines += _more(len(doubtful))
    return [visible(line) for line in lines]


def _calls(alignment: Alignment) -> int:
    return sum(not _is_module(name) for relation in alignment.relations for name in relation.target)


def _alone_lines(side: str, alone: list[Alone]) -> list[str]:
    modules = [one for one in alone if _is_module(one.name)]
    others = Counter(one.why for one in alone if not _is_module(one.name))
    lines = []
    if modules:
        lines.append(f"{len(modules)} modules of the {side} run stay alone:")
        lines += [f"  {one.name}: {one.why}" for one in modules[:_SHOWN]]
        lines += _more(len(modules))
    if others:
        lines.append(f"{others.total()} API calls of the {side} run stay alone:")
        lines += [f"  {count:>6}  {why}" for why, count in others.most_common(_SHOWN)]
        lines += _more(len(others))
    return lines


def _more(count: int) -> list[str]:
    return [f"  ... and {count - _SHOWN} more"] if count > _SHOWN else []


def _is_module(name: str) -> bool:
    return name.partition(".")[0] in CONTAINERS
