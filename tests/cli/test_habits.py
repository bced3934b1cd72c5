"""What people try first: the bare command, two paths without flags, typing errors, Tab, a package that is missing."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from twinprobe._cli.common import Pace
from twinprobe._cli.main import COMMANDS, _parse, main

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"
TARGET, GOLDEN = str(DEMO / "target"), str(DEMO / "golden")


def test_the_bare_command_shows_five_jobs_with_an_example_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    examples = [line.strip() for line in shown.splitlines() if line.startswith("      ") and line[6] != " "]
    assert len(examples) == 5
    for example in examples:
        words = shlex.split(example)
        if words[0] == "twinprobe":
            assert _parse(words[1:], "twinprobe").run  # what is shown can be typed
    assert all(name in shown for name in COMMANDS)


def test_two_paths_are_target_and_golden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", TARGET, GOLDEN, "-o", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"comparing {TARGET} (target) with {GOLDEN} (golden)" in shown
    assert main(["compare", TARGET, GOLDEN, "-o", str(tmp_path), "--json"]) == 0
    by_place = json.loads(capsys.readouterr().out)
    assert main(["compare", "-tp", TARGET, "-gp", GOLDEN, "-o", str(tmp_path), "--json"]) == 0
    by_flag = json.loads(capsys.readouterr().out)
    paths = [
        [(one["target"]["path"], one["golden"]["path"]) for one in found["ranks"]] for found in (by_place, by_flag)
    ]
    assert paths[0] == paths[1]
    assert all(TARGET in target and GOLDEN in golden for target, golden in paths[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "compare needs two paths"),
        (["-tp", TARGET], "-gp is missing"),
        ([TARGET], "compare takes two paths, not 1"),
        ([TARGET, GOLDEN, GOLDEN], "compare takes two paths, not 3"),
        ([TARGET, GOLDEN, "-tp", TARGET], "the paths are given twice"),
    ],
)
def test_paths_that_are_missing_or_too_many(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["comapre", "a", "b"], "did you mean 'compare'?"),
        (["compare", "a", "b", "--formt", "csv"], "did you mean '--format'?"),
        (["compare", "a", "b", "--out", "c"], "did you mean '--output_path'?"),
        (["compare", "a", "b", "--layer_maping=x.yaml"], "did you mean '--layer_mapping'?"),
        (["view", "--exprt", "x.html"], "did you mean '--export'?"),
        (["compare", "a", "b", "--engine", "rya"], "did you mean 'ray'?"),
        (["llm", "comapre"], "did you mean 'compare'?"),
    ],
)
def test_a_typing_error_gets_a_suggestion(
    words: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert suggestion in shown
    assert len(shown.splitlines()) == 2


def test_bash_completes_commands_flags_and_values() -> None:
    command = [sys.executable, "-m", "twinprobe", "--completion", "bash"]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def completed(*words: str) -> set[str]:
        listed = " ".join(shlex.quote(word) for word in words)
        ask = f"{script}\nCOMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _twinprobe; echo ${{COMPREPLY[*]}}"
        return set(subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split())

    assert completed("twinprobe", "com") == {"compare"}
    assert "--layer_mapping" in completed("twinprobe", "compare", "--l")
    assert completed("twinprobe", "compare", "--engine", "") == {"auto", "inline", "process", "ray"}
    assert completed("twinprobe", "view", "--ex") == {"--export"}


@pytest.mark.parametrize(("shell", "line"), [("zsh", "compdef _twinprobe twinprobe"), ("fish", "-l layer_mapping")])
def test_other_shells_have_a_script(shell: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion", shell]) == 0
    shown = capsys.readouterr().out
    assert line in shown
    assert all(name in shown for name in COMMANDS)


def test_a_missing_framework_is_one_line_with_the_command_that_installs_it() -> None:
    for name, install in (("torch", "torch"), ("mindspore", "mindspore"), ("paddle", "paddlepaddle")):
        program = (
            f"import sys\nsys.modules[{name!r}] = None\n"
            f"try:\n    import twinprobe.{name}\nexcept ImportError as error:\n    print(error)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert f"(pip install {install})" in done.stdout, done.stdout
        assert len(done.stdout.splitlines()) == 1


def test_the_time_left_does_not_count_what_came_before_the_work() -> None:
    pace = Pace()
    pace.note("MiB", 0, 8000, now=80.0)  # eighty seconds went into reading two dumps
    pace.note("MiB", 1000, 8000, now=81.0)
    assert pace.left == pytest.approx(7.0)
    assert pace.words == ["1e+03/s", "0:00:07 left"]


def test_resumed_ranks_do_not_make_the_rest_look_quick() -> None:
    pace = Pace()
    pace.note("ranks", 4000, 4096, now=1.0)  # recalled, not compared
    pace.note("ranks", 4008, 4096, now=41.0)
    assert pace.left == pytest.approx(440.0)
    pace.note("slices", 10, 40, now=50.0)
    assert pace.left is None
    pace.note("slices", 20, 40, now=55.0)
    assert pace.left == pytest.approx(10.0)


def test_the_json_object_is_as_documented_and_says_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DEMO.parents[1] / "docs" / "compare.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+)` \| json", page, re.MULTILINE))
    dumps = [str(Path(side) / "step0" / "rank0" / "dump.json") for side in (TARGET, GOLDEN)]

    def answer(*words: str) -> dict[str, object]:
        assert main(["compare", *words, "-o", str(tmp_path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert set(found) <= documented, set(found) - documented
        return dict(found)

    assert answer(*dumps)["next"] == f"twinprobe compare {dumps[0]} {dumps[1]} --format html -o out"
    following = shlex.split(str(answer(*dumps, "--format", "html")["next"]))
    folders = [str(Path(dump).parent) for dump in dumps]
    assert following == ["twinprobe", "graph_visualize", "-tp", folders[0], "-gp", folders[1], "-o", "out"]
    assert main([*following[1:-1], str(tmp_path / "drawn")]) == 0  # what is proposed works
    assert list((tmp_path / "drawn").iterdir())
    capsys.readouterr()
    assert answer(dumps[0], dumps[0])["next"] is None
    assert "next" in answer(TARGET, GOLDEN)
    assert "next" in answer(TARGET, GOLDEN, "-da")
