"""Parameters of two modules that belong together: by name, by the frameworks' spelling, else by order and shape."""

from __future__ import annotations

from collections import Counter

BY_NAME, BY_SPELLING, BY_ORDER = "", "parameter spelling", "parameter order"
# What the layers of MindSpore call the parameters of PyTorch's.
_SPELLINGS = {
    "gamma": "weight",
    "beta": "bias",
    "embedding_table": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
Parameter = tuple[str, str | None]  # name, shape


def pair_parameters(target: list[Parameter], golden: list[Parameter]) -> dict[str, tuple[str, str]]:
    """Target parameter -> (golden parameter, how they were paired). What shapes do not settle stays alone."""
    free = dict(golden)
    pairs: dict[str, tuple[str, str]] = {}
    for name, _ in target:
        if name in free:
            pairs[name] = (name, BY_NAME)
            del free[name]
    rest = [(name, shape) for name, shape in target if name not in pairs]
    by_spelling: dict[str, str] = {}
    for name in free:
        by_spelling.setdefault(spelled(name), name)
    for name, _ in rest:
        other = by_spelling.pop(spelled(name), None)
        if other is not None:
            pairs[name] = (other, BY_SPELLING)
            del free[other]
    rest = [(name, shape) for name, shape in rest if name not in pairs]
    mine, theirs = Counter(shape for _, shape in rest), Counter(free.values())
    for name, shape in rest:
        if shape is not None and mine[shape] == theirs[shape]:
            other = next(known for known, known_shape in free.items() if known_shape == shape)
            pairs[name] = (other, BY_ORDER)
            del free[other]
    return pairs


def spelled(name: str) -> str:
    """A parameter's name in PyTorch's spelling; the last part of a dotted name decides."""
    head, dot, last = name.rpartition(".")
    return f"{head}{dot}{_SPELLINGS.get(last, last)}"
