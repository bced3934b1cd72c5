"""The files of an alignment: alignment.json, layer_mapping.yaml and the page with both trees."""

from __future__ import annotations

from pathlib import Path

from twinprobe.align.auto.alignment import Alignment
from twinprobe.align.auto.file import to_document
from twinprobe.align.auto.layer_rules import LayerRules, layer_rules
from twinprobe.align.mapping.layer_file import TOP
from twinprobe.report.alignment_page import fill_page
from twinprobe.report.atomic import Staging, prepare_folder
from twinprobe.report.text import json_bytes, visible
from twinprobe.runs.run import Run

JSON, YAML, PAGE = "alignment.json", "layer_mapping.yaml", "alignment.html"
_SHOWN = 40


def write_alignment(alignment: Alignment, target: Run, golden: Run, folder: Path) -> list[Path]:
    """Write all three files, whole or not at all; return their paths."""
    prepare_folder(folder)
    paths = [folder / name for name in (JSON, YAML, PAGE)]
    with Staging() as staging:
        document = {**to_document(alignment), "target_run": str(target.path), "golden_run": str(golden.path)}
        staging.file(paths[0]).write_bytes(json_bytes(document) + b"\n")
        staging.file(paths[1]).write_text(layer_mapping_text(layer_rules(alignment)), encoding="utf-8")
        fill_page(alignment, target, golden, staging.file(paths[2]))
    return paths


def layer_mapping_text(rules: LayerRules) -> str:
    """A layer mapping file, with a comment on what it cannot hold."""
    lines = [
        "# Layer mapping found by twinprobe align: under each class of the target run, child: child in the other run."
    ]
    if rules.left_out:
        lines.append("# This form holds one-to-one renames by class alone. Not in it, but in alignment.json:")
        lines += [f"#   {visible(text)}" for text in rules.left_out[:_SHOWN]]
        if len(rules.left_out) > _SHOWN:
            lines.append(f"#   and {len(rules.left_out) - _SHOWN} more")
    if not rules.classes:
        lines += ["# All names are equal: nothing needs renaming.", f"{TOP}: {{}}"]
    for cls, names in rules.classes.items():
        lines += ["", f"{_quoted(cls)}:"]
        lines += [f"  {_quoted(mine)}: {_quoted(theirs)}" for mine, theirs in names.items()]
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    """A name as YAML text: plain where that is safe."""
    plain = name.replace("_", "").replace(".", "")
    if plain.isalnum() and plain.isascii() and not name[0].isdigit() and name.lower() not in _WORDS:
        return name
    return "'" + visible(name).replace("'", "''") + "'"


_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
