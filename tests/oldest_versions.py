"""The lower bounds of pyproject.toml as pip constraints: the oldest versions that are promised to work.

python tests/oldest_versions.py > constraints.txt
"""

from __future__ import annotations

import re
from pathlib import Path

_BOUND = re.compile(r'"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?>=([0-9][0-9A-Za-z.]*)[^"]*"')


def oldest_versions(text: str) -> dict[str, str]:
    """Package names with the lower bound that a pyproject.toml sets for each; where several do, the highest."""
    found: dict[str, str] = {}
    for written, version in _BOUND.findall(text):
        name = re.sub(r"[-_.]+", "-", written).lower()
        if name not in found or _number(version) > _number(found[name]):
            found[name] = version
    return found


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


if __name__ == "__main__":
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    for package, bound in oldest_versions(project.read_text(encoding="utf-8")).items():
        print(f"{package}=={bound}")
