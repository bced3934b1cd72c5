"""Whatever command is interrupted goes on where it was: graphs, merged ranks, tokens of an inference run."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from many_ranks import begun, compare, leftovers, ranks_at

from support import slow
from twinprobe._cli import main
from twinprobe._scale.engine import EngineOptions

sys.path.append(str(Path(__file__).resolve().parents[1] / "llm"))  # its small inference dumps serve here as well

Advance = Callable[[str, int, int], None]
PIECES = 5
ENGINE = EngineOptions("process", workers=1)
_STAMP = re.compile(r"\d{14}")


@dataclass
class Case:
    """A command: how it runs, what it gives, and the input of one of its pieces."""

    run: Callable[[Path, Advance, bool], None]
    input: Path
    changed: tuple[bytes, bytes]

    def change(self) -> None:
        content = self.input.read_bytes()
        assert self.changed[0] in content
        self.input.write_bytes(content.replace(*self.changed, 1))


def hierarchical(folder: Path, count: int) -> Path:
    """Ranks whose calls lie in a hierarchy, as graphs need it; rank 3 is off."""
    for rank in ranks_at(folder, count, off={3: 1.0}).iterdir():
        names = json.loads((rank / "dump.json").read_text())["data"]
        (rank / "construct.json").write_text(json.dumps(dict.fromkeys(names)))
        (rank / "stack.json").write_text("{}")
    return folder


def graph_case(folder: Path, form: str) -> Case:
    from twinprobe._graph.job import GraphRequest, run_request

    sides = hierarchical(folder / "t", PIECES), hierarchical(folder / "g", PIECES)

    def run(out: Path, advance: Advance, resume: bool) -> None:
        request = GraphRequest(*sides, out, form, "20260102030405", engine=ENGINE, resume=resume)
        assert run_request(request, advance).failures == []

    return Case(run, sides[0] / "rank0/dump.json", (b'"Mean": 0.1', b'"Mean": 0.2'))


def merge_case(folder: Path) -> Case:
    from twinprobe._compare.merge.job import merge_results

    ranks_at(folder / "t", PIECES, off={3: 1.0})
    ranks_at(folder / "g", PIECES)
    assert compare(folder / "t", folder / "g", folder / "results", "--csv") == 0
    config = folder / "merge.yaml"
    config.write_text("api: [Torch, Distributed]\n")

    def run(out: Path, advance: Advance, resume: bool) -> None:
        def told(done: int, total: int) -> None:
            advance("ranks", done, total)

        merge_results(folder / "results", out, config, engine=ENGINE, resume=resume, progress=told)

    (first,) = (folder / "results").glob("compare_result_rank0_*.csv")
    return Case(run, first, (b"1.0", b"2.0"))


def llm_case(folder: Path) -> Case:
    import llm_dumps

    from twinprobe._compare.llm.job import LlmRequest, Notes, compare_dumps, utc_timestamp, write_llm_reports

    sizes = llm_dumps.Sizes(layers=1)
    values = {token: llm_dumps.decoder_values(sizes, token) for token in range(PIECES)}
    sides = [llm_dumps.write_torch(folder / side, values, sizes.layers) for side in ("mine", "golden")]

    def run(out: Path, advance: Advance, resume: bool) -> None:
        request = LlmRequest(*sides, engine=ENGINE)
        with Notes(request, out, utc_timestamp(), resume=resume) as notes:
            result = compare_dumps(request, advance, notes)
            write_llm_reports(result, out, ["csv"], timestamp=notes.timestamp)
            notes.end()

    file = sides[0] / "0/root.lm_head/output.pth"
    return Case(run, file, (file.read_bytes()[-200:-190], bytes(10)))


@pytest.fixture(params=["db", "vis", "merge", "llm"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    made = {"merge": merge_case, "llm": llm_case}.get(request.param)
    return made(tmp_path) if made is not None else graph_case(tmp_path, request.param)


def results(out: Path) -> dict[str, object]:
    """What a command has written, whatever its time."""
    found: dict[str, object] = {}
    for path in out.iterdir():
        if path.is_file() and path.name != "index.html":
            found[_STAMP.sub("T", path.name)] = rows(path) if path.suffix == ".db" else path.read_bytes()
    return found


def rows(path: Path) -> list[object]:
    with sqlite3.connect(path) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name")]
        return [db.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in names]


def done(out: Path) -> dict[str, int]:
    """The pieces that are noted as done, and when that was."""
    return {path.name: path.stat().st_mtime_ns for path in out.glob(".twinprobe/*/done/*.json")}


def nothing(_what: str, _done: int, _total: int) -> None:
    """No progress is shown."""


def interrupted(case: Case, out: Path, after: int) -> dict[str, int]:
    """Run a command and press Ctrl-C when so many pieces are done; what is noted then."""

    def stop(_what: str, count: int, _total: int) -> None:
        if count == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        case.run(out, stop, False)
    assert leftovers(out) == []
    assert results(out) == {}
    return done(out)


def resumed(case: Case, out: Path) -> dict[str, int]:
    """Run it again with --resume; what is noted when all is done."""
    noted: dict[str, int] = {}

    def look(_what: str, count: int, total: int) -> None:
        if count == total:
            noted.update(done(out))

    case.run(out, look, True)
    return noted


@pytest.mark.parametrize("case", ["db", "llm", *slow("vis", "merge")], indirect=True)
def test_only_what_is_missing_is_done_and_the_result_is_that_of_a_command_in_one_go(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = interrupted(case, out, 3)
    assert 3 <= len(before) < PIECES
    os.utime(case.input, (1, 1))  # dates do not count
    after = resumed(case, out)
    assert len(after) == PIECES
    assert {name: when for name, when in after.items() if name in before} == before
    case.run(tmp_path / "plain", nothing, False)
    assert results(out) == results(tmp_path / "plain") != {}
    for folder in (out, tmp_path / "plain"):
        assert leftovers(folder) == []
        assert not (folder / ".twinprobe").exists()


@pytest.mark.parametrize("case", ["db", *slow("vis", "merge", "llm")], indirect=True)
def test_a_piece_whose_input_has_changed_is_done_again(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = interrupted(case, out, 3)
    when = case.input.stat()
    case.change()
    os.utime(case.input, ns=(when.st_atime_ns, when.st_mtime_ns))
    assert case.input.stat().st_size == when.st_size
    after = resumed(case, out)
    assert len([name for name in before if after[name] != before[name]]) == 1
    case.run(tmp_path / "plain", nothing, False)
    assert results(out) == results(tmp_path / "plain")


@pytest.mark.parametrize("case", ["db", *slow("vis", "merge", "llm")], indirect=True)
def test_nothing_to_resume_is_no_obstacle(case: Case, tmp_path: Path) -> None:
    case.run(tmp_path / "out", nothing, True)
    case.run(tmp_path / "plain", nothing, False)
    assert results(tmp_path / "out") == results(tmp_path / "plain")


@pytest.mark.parametrize("form", ["db", *slow("vis")])
def test_a_rank_that_could_not_be_drawn_is_added_later(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = hierarchical(tmp_path / "t", 3), hierarchical(tmp_path / "g", 3)
    late, out = sides[0] / "rank1/dump.json", tmp_path / "out"
    content = late.read_bytes()
    late.write_text("not yet")
    words = ["graph_visualize", "-tp", str(sides[0]), "-gp", str(sides[1]), "--file_type", form, "--engine", "inline"]
    assert main([*words, "-o", str(out)]) == 2  # rank 1 is missing until it is resumed
    assert "rank1/dump.json" in capsys.readouterr().err
    before = done(out)
    assert len(before) == 2
    late.write_bytes(content)
    assert main([*words, "-o", str(out), "--resume"]) == 0
    assert main([*words, "-o", str(tmp_path / "plain")]) == 0
    assert results(out) == results(tmp_path / "plain")
    assert not (out / ".twinprobe").exists()


def test_a_result_that_could_not_be_read_is_merged_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = merge_case(tmp_path)
    content, out = case.input.read_bytes(), tmp_path / "out"
    title, _, _ = content.partition(b"\n")
    case.input.write_bytes(title + b"\n" + b"\xff\xfe," * 3)
    config = tmp_path / "merge.yaml"
    words = ["merge_result", "-i", str(tmp_path / "results"), "-config", str(config), "--workers", "1", "--quiet"]
    assert main([*words, "-o", str(out)]) == 2
    assert case.input.name in capsys.readouterr().err
    before = done(out)
    case.input.write_bytes(content)
    assert {name: when for name, when in resumed(case, out).items() if name in before} == before
    assert main([*words, "-o", str(tmp_path / "plain")]) == 0
    assert results(out) == results(tmp_path / "plain")


def test_ctrl_c_on_a_terminal_keeps_what_is_drawn(tmp_path: Path) -> None:
    count = 8
    sides = hierarchical(tmp_path / "t", count), hierarchical(tmp_path / "g", count)
    words = ["graph_visualize", "-tp", str(sides[0]), "-gp", str(sides[1]), "--quiet"]
    out = tmp_path / "out"
    child = begun(out, *words, "--engine", "process")
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to the command and to its workers
    _, said = child.communicate(timeout=600)
    assert child.returncode == 130, said
    assert "Traceback" not in said
    assert leftovers(out) == []
    assert 2 <= len(done(out)) < count
    assert main([*words, "-o", str(out), "--resume"]) == 0
    assert main([*words, "-o", str(tmp_path / "plain")]) == 0
    assert results(out) == results(tmp_path / "plain")
