"""config.json: every key known, every mistake named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from twinprobe._record.config import load_config
from twinprobe.errors import BadInput


def write(path: Path, document: Any) -> Path:
    file = path / "config.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return file


def test_a_full_file_is_read(tmp_path: Path) -> None:
    document = {
        "task": "statistics",
        "dump_path": "/somewhere",
        "rank": [0, "2"],
        "step": ["4-6", 9],
        "level": "mix",
        "async_dump": True,
        "extra_info": False,
        "precision": "high",
        "risk_level": "ALL",
        "dump_enable": True,
        "statistics": {
            "list": ["relu"],
            "tensor_list": ["conv"],
            "data_mode": ["forward", "input"],
            "summary_mode": "md5",
        },
        "tensor": {"list": []},
    }
    config = load_config(write(tmp_path, document))
    assert config.steps == {4, 5, 6, 9}
    assert config.ranks == {0, 2}
    assert (config.level, config.summary_mode, config.names, config.tensor_names) == (
        "mix",
        "md5",
        ("relu",),
        ("conv",),
    )
    assert config.wants("forward")
    assert config.wants("input")
    assert not config.wants("backward")
    assert not config.wants("output")


def test_keyword_arguments_win_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, {"dump_path": "a", "level": "L0", "step": [1]})
    config = load_config(file, dump_path="b", level="mix", summary_mode="xor")
    assert (config.dump_path, config.level, config.steps, config.summary_mode) == (Path("b"), "mix", {1}, "xor")


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"dump_path": "x", "levle": "L0"}, "levle"),
        ({"dump_path": "x", "statistics": {"summary": "md5"}}, "summary"),
        ({"dump_path": "x", "overflow_check": {}}, "overflow_check"),
        ({"dump_path": "x", "level": "L2"}, "L0, L1, mix, debug"),
        ({"dump_path": "x", "task": "grad"}, "statistics, tensor, structure"),
        ({"dump_path": "x", "statistics": {"summary_mode": "sha"}}, "statistics, md5, xor"),
        ({"dump_path": "x", "step": "3"}, "step"),
        ({"dump_path": "x", "step": ["6-4"]}, "6-4"),
        ({"dump_path": "x", "rank": [-1]}, "-1"),
        ({"dump_path": "x", "rank": [1.5]}, "1.5"),
        ({"dump_path": "x", "statistics": {"scope": ["only one"]}}, "scope"),
        ({"dump_path": "x", "statistics": {"data_mode": ["sideways"]}}, "sideways"),
        ({"dump_path": "x", "async_dump": 1}, "async_dump"),
        ({"task": "statistics"}, "dump_path"),
        ({"dump_path": "x", "tensor": [], "task": "tensor"}, "tensor"),
        ("{", "JSON"),
        ("[]", "object"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, document: Any, named: str) -> None:
    with pytest.raises(BadInput, match=re.escape(named)) as caught:
        load_config(write(tmp_path, document))
    assert "config.json" in str(caught.value)


def test_a_near_miss_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="did you mean 'risk_level'"):
        load_config(write(tmp_path, {"dump_path": "x", "risk_levl": "ALL"}))


def test_dump_enable_is_read_again(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, {"dump_path": "x", "dump_enable": True}))
    assert config.enabled_now()
    write(tmp_path, {"dump_path": "x", "dump_enable": False})
    assert not config.enabled_now()
    write(tmp_path, '{"dump_path": "x", "dump_en')
    assert config.enabled_now()  # being rewritten at this moment: the last full reading counts
