"""The table of scores, and a line for every answer that is not right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from judge.scoring import Outcome


def show(outcomes: list[Outcome]) -> None:
    """Print everything."""
    for tool in dict.fromkeys(one.tool for one in outcomes):
        own = [one for one in outcomes if one.tool == tool]
        print(f"\n## {tool}\n")
        show_bugs([one for one in own if one.sort == "bugs"])
        show_harmless([one for one in own if one.sort != "bugs"])
    for title, lines in (
        ("no answer", [f"{where(one)}: {one.failed}" for one in outcomes if one.failed]),
        ("changes that change nothing", [where(one) for one in outcomes if one.sort == "bugs" and not one.effect]),
        ("not right", [complaint(one) for one in outcomes if is_wrong(one)]),
    ):
        if lines:
            print(f"\n### {title} ({len(lines)})\n")
            print("\n".join(lines))


def show_bugs(outcomes: list[Outcome]) -> None:
    """Bugs by dtype, level and task."""
    if not outcomes:
        return
    print(
        "| planted bugs | level | task | cases | right call first | right module | claimed falsely | nothing claimed "
        "| kind stated | kind right |"
    )
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for (dtype, level, task), group in grouped(outcomes):
        answered = [one for one in group if not one.failed]
        stated = [one for one in answered if one.kind_right is not None]
        call = rate(sum(one.right_call for one in answered), len(answered)) if level == "mix" else "-"
        cells = [
            dtype, level, task, str(len(answered)), call,
            rate(sum(one.right_module for one in answered), len(answered)),
            rate(sum(one.false_claim for one in answered), len(answered)),
            rate(sum(not one.claims for one in answered), len(answered)),
            rate(len(stated), len(answered)), rate(sum(bool(one.kind_right) for one in stated), len(stated)),
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |")


def show_harmless(outcomes: list[Outcome]) -> None:
    """Clean pairs and artefacts by dtype, level and task."""
    if not outcomes:
        return
    print("\n| harmless pairs | dtype | level | task | cases | without a claim | error rows | rows |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: | ---: |")
    for sort in dict.fromkeys(one.sort for one in outcomes):
        for (dtype, level, task), group in grouped([one for one in outcomes if one.sort == sort]):
            answered = [one for one in group if not one.failed]
            quiet = rate(sum(not one.false_claim for one in answered), len(answered))
            errors, rows = sum(one.error_rows for one in answered), sum(one.rows for one in answered)
            counted = f"{errors:,} | {rows:,}" if rows else "- | -"  # the older tool gives no verdicts with -da
            print(f"| {sort} | {dtype} | {level} | {task} | {len(answered)} | {quiet} | {counted} |")


def grouped(outcomes: Iterable[Outcome]) -> list[tuple[tuple[str, str, str], list[Outcome]]]:
    """By dtype, level and task, in the order in which they are first met."""
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        groups[one.dtype, one.level, one.task].append(one)
    order = {"float32": 0, "bf16": 1, "autocast": 2, "mix": 0, "L0": 1, "statistics": 0, "tensor": 1}
    return sorted(groups.items(), key=lambda item: [order[part] for part in item[0]])


def rate(count: int, of: int) -> str:
    """'31 (86 %)'."""
    return f"{count} ({100 * count / of:.0f} %)" if of else "-"


def is_wrong(one: Outcome) -> bool:
    """Whether an answer deserves a line."""
    if one.failed:
        return False
    if one.sort != "bugs":
        return one.false_claim
    return not (one.right_call if one.level == "mix" else one.right_module) or one.kind_right is False


def where(one: Outcome) -> str:
    """The pair, shortly."""
    tool = "" if one.tool == "twinprobe" else f"{one.tool}: "
    return f"{tool}{one.case} [{one.dtype} {one.level} {one.task}]"


def complaint(one: Outcome) -> str:
    """What was said instead."""
    said = ", ".join(f"{place} ({op})" for place, op in zip(one.claims, one.ops, strict=True)) or "nothing claimed"
    kinds = f"; kind: {', '.join(one.kinds)}" if one.kinds else ""
    sentence = f'; "{one.sentence[:160]}"' if one.sentence else ""
    return f"{where(one)}: {said}{kinds}{sentence}"
