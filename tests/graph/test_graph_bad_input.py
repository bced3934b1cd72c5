"""What cannot be drawn is refused in words that say what, where, and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from graph_drawing import draw, nodes

from support import forward, tensor, write_dump
from twinprobe._cli import main
from twinprobe.errors import BadInput

NAME = "Module.a.A.forward.0"


def good(folder: Path) -> Path:
    write_dump(folder, {NAME: forward([tensor()], [tensor()])}, level="L0", parents={NAME: None}, stacks={})
    return folder


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a graph command that must end with exit code 2 and leave nothing behind; return its message."""

    def run(*words: str | Path) -> str:
        assert main([*map(str, words), "-o", str(tmp_path / "out")]) == 2
        assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
        message = capsys.readouterr().err
        assert "Traceback" not in message
        return message

    return run


@pytest.mark.parametrize("missing", ["dump.json", "stack.json", "construct.json"])
def test_a_missing_file_is_named(tmp_path: Path, refused: Callable[..., str], missing: str) -> None:
    (good(tmp_path / "dump") / missing).unlink()
    message = refused("graph_visualize", "-tp", tmp_path / "dump")
    assert missing in message
    assert str(tmp_path / "dump") in message


def test_an_empty_construct_json_says_which_level_to_record(tmp_path: Path, refused: Callable[..., str]) -> None:
    (good(tmp_path / "dump") / "construct.json").write_text("{}")
    message = refused("graph_visualize", "-tp", tmp_path / "dump")
    assert "construct.json is empty" in message
    assert "L0 or mix" in message


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 3}', '{"a": '])
def test_a_damaged_construct_json_is_named(tmp_path: Path, refused: Callable[..., str], content: str) -> None:
    (good(tmp_path / "dump") / "construct.json").write_text(content)
    assert "construct.json" in refused("graph_visualize", "-tp", tmp_path / "dump")


def test_ranks_against_steps_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    good(tmp_path / "a" / "rank0")
    good(tmp_path / "b" / "step0" / "rank0")
    message = refused("graph_visualize", "-tp", tmp_path / "a", "-gp", tmp_path / "b")
    assert "rank folders" in message
    assert "step folders" in message


def test_no_rank_in_common_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    for rank in (0, 1):
        good(tmp_path / "a" / f"rank{rank}")
        good(tmp_path / "b" / f"rank{rank + 2}")
    message = refused("graph_visualize", "-tp", tmp_path / "a", "-gp", tmp_path / "b")
    assert "correspond one to one" in message
    assert "rank0" in message
    assert "rank3" in message


def test_a_rank_without_counterpart_is_named_and_the_rest_drawn(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        good(tmp_path / "a" / f"rank{rank}")
    for rank in (1, 2, 5):
        good(tmp_path / "b" / f"rank{rank}")
    outcome = draw(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    assert {row["rank"] for row in nodes(outcome.files[0]).values()} == {1, 2}
    assert any("rank0" in failure for failure in outcome.failures)
    assert any("rank5" in failure for failure in outcome.failures)


def test_one_damaged_rank_costs_only_itself(tmp_path: Path) -> None:
    for rank in (0, 1):
        good(tmp_path / "a" / f"rank{rank}")
    (tmp_path / "a" / "rank1" / "dump.json").write_text("no json")
    outcome = draw(tmp_path / "a", None, tmp_path / "out")
    assert {row["rank"] for row in nodes(outcome.files[0]).values()} == {0}
    (failure,) = outcome.failures
    assert "rank1" in failure


def test_a_folder_that_mixes_kinds_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    good(tmp_path / "a" / "rank0")
    good(tmp_path / "a" / "step0" / "rank0")
    assert "mixes kinds" in refused("graph_visualize", "-tp", tmp_path / "a")


def test_a_folder_that_is_neither_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    good(tmp_path / "a" / "something")
    assert "neither a dump nor" in refused("graph_visualize", "-tp", tmp_path / "a")
    assert "does not exist" in refused("graph_visualize", "-tp", tmp_path / "nowhere")
    assert "is a file" in refused("graph_visualize", "-tp", tmp_path / "a" / "something" / "dump.json")


@pytest.mark.parametrize(("text", "words"), [
    ("", "is not JSON"), ("[]", "is not an object"), ("{}", "npu_path"), ('{"npu_path": 3}', "is not text"),
    ('{"npu_path": "x", "is_print_compare_log": "yes"}', "true or false"), ('{"npu_path": "x"}', "does not exist"),
    ('{"npu_path": "x", "parallel_merge": 1}', "parallel_merge"),
])  # fmt: skip
def test_a_bad_compare_json_is_refused(tmp_path: Path, refused: Callable[..., str], text: str, words: str) -> None:
    (tmp_path / "compare.json").write_text(text)
    assert words in refused("graph", "-i", tmp_path / "compare.json")


def test_a_layer_mapping_key_that_matched_nothing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good(tmp_path / "a")
    (tmp_path / "map.yaml").write_text("NoSuchClass:\n  x: y\n")
    words = ["graph_visualize", "-tp", tmp_path / "a", "-gp", tmp_path / "a", "-lm", tmp_path / "map.yaml"]
    assert main([*map(str, words), "-o", str(tmp_path / "out")]) == 0
    assert "NoSuchClass" in capsys.readouterr().err


def test_two_tasks_cannot_be_compared(tmp_path: Path, reference: Path) -> None:
    dumps = reference / "graph" / "dumps"
    with pytest.raises(BadInput, match="checksums"):
        draw(dumps / "base_md5" / "step0", dumps / "base_statistics" / "step0", tmp_path)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    nasty = 'Torch.a"b\\c\n</script>\x00.0.forward'
    data = {nasty: forward([tensor()], [tensor()]), NAME: forward([tensor()], [tensor()])}
    write_dump(tmp_path / "dump", data, parents={nasty: NAME, NAME: None}, stacks={"0": [[nasty], ['File "x"\n']]})
    (db,) = draw(tmp_path / "dump", tmp_path / "dump", tmp_path / "db").files
    row = nodes(db)[f"NPU_0_0_{nasty}"]
    assert row["matched_node_link"] == ["DefaultModel", NAME, nasty]
    assert list(row["output_data"]) == [f"{nasty}.output.0"]
    (vis,) = draw(tmp_path / "dump", tmp_path / "dump", tmp_path / "vis", "vis").files
    assert nasty in json.loads(vis.read_text())["NPU"]["node"]


def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good(tmp_path / "dump")
    (tmp_path / "out").write_text("")
    assert main(["graph_visualize", "-tp", str(tmp_path / "dump"), "-o", str(tmp_path / "out")]) == 2
    assert "is a file" in capsys.readouterr().err


def test_two_ranks_of_the_same_dump_do_not_disturb_each_other(tmp_path: Path) -> None:
    good(tmp_path / "a" / "rank0")
    shutil.copytree(tmp_path / "a" / "rank0", tmp_path / "a" / "rank7")
    (file,) = draw(tmp_path / "a", tmp_path / "a", tmp_path / "out").files
    assert len(nodes(file)) == 2 * 2 * 2
