"""Where the two runs part: the node, and the facts for the sentence that says what happened there."""

from __future__ import annotations

from typing import Any

from twinprobe.graph.read_db import TARGET
from twinprobe.view.levels import OWN_ERROR, badness
from twinprobe.view.nodes import Scene
from twinprobe.view.overview import Orders

_EQUAL = 1e-9
_AMPLIFIED = 10
_TOLD = ("NormRelativeErr", "Cosine", "MaxRelativeErr")


def first_known(scene: Scene) -> dict[str, Any] | None:
    """The first divergence as a file of ours tells it; None if the file does not know."""
    told = scene.config.summary.get((scene.step, scene.rank), {})
    if not told.get("first_node"):
        return None
    node = scene.graph.node(TARGET, told["first_node"])
    if node is None:
        return None
    return _report(scene, node["node_name"], told.get("first_sentence", ""), told.get("first_stack", ""))


def first_of(scene: Scene, places: Orders) -> dict[str, Any] | None:
    """The first of the suspicious nodes in execution order."""
    rows = scene.graph.by_order(TARGET, [int(places[0])]) if len(places) else []
    return _report(scene, rows[0]["node_name"], "") if rows else None


def _report(scene: Scene, name: str, sentence: str, stack: str = "") -> dict[str, Any]:
    detail = scene.detail(TARGET, name)
    target, golden = detail["target"], detail["golden"]
    shown = {key: target.get(key) for key in ("name", "order", "level", "origin", "verdict", "error", "match")}
    return {**shown, "parent": target["parent"], "sentence": sentence, "stack": stack, **facts(target, golden)}


def facts(target: dict[str, Any], golden: dict[str, Any] | None) -> dict[str, Any]:
    """By how much the inputs and the outputs of a node differ, and whether the difference arose in it.

    ``argument`` names the one input that differs where others agree: often a weight.
    """
    if golden is not None and any("md5" in tensor for tensor in target["outputs"]):
        metric = "md5"
        given, made = (_digests(target[part], golden[part]) for part in ("inputs", "outputs"))
    else:
        metric = next((name for name in _TOLD if _measured(target["outputs"], name)), OWN_ERROR)
        given, made = (_measured(target[part], metric) for part in ("inputs", "outputs"))
    most, out = (max(values.values(), default=None) for values in (given, made))
    if metric == OWN_ERROR:
        out = target.get("error")
    some = [name for name, value in given.items() if value > _EQUAL]
    argument = some[0].removeprefix(f"{target['name']}.") if len(some) == 1 < len(given) else None
    how = target.get("origin") or (None if argument else _how(most, out))
    return {"metric": metric, "input": most, "output": out, "argument": argument, "how": how}


def _how(given: float | None, made: float | None) -> str | None:
    if made is None or made <= _EQUAL:
        return None
    if given is None or given <= _EQUAL:
        return "injected"
    return "amplified" if made > _AMPLIFIED * given else "inherited"


def _measured(tensors: list[dict[str, str]], metric: str) -> dict[str, float]:
    found = {tensor["name"]: badness(tensor.get(metric, ""), metric) for tensor in tensors}
    return {name: value for name, value in found.items() if value is not None}


def _digests(target: list[dict[str, str]], golden: list[dict[str, str]]) -> dict[str, float]:
    pairs = zip(target, golden, strict=False)
    return {a["name"]: float(a["md5"] != b["md5"]) for a, b in pairs if "md5" in a and "md5" in b}
