"""Both generations of the command, as the users' documents print them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from graph_drawing import nodes, table

from twinprobe._cli import main

STAMP = r"\d{14}"


@pytest.fixture
def work(tmp_path: Path, reference: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the dumps that the documents speak of."""
    monkeypatch.chdir(tmp_path)
    dumps = reference / "graph" / "dumps"
    for name, side in (("npu_dump", "dist_pert"), ("bench_dump", "dist_base")):
        shutil.copytree(dumps / side, tmp_path / "steps" / name)
        shutil.copytree(dumps / side / "step0", tmp_path / "ranks" / name)
        shutil.copytree(dumps / side / "step0" / "rank0", tmp_path / "one" / name)
    return tmp_path


def seed_examples(seeds: Path) -> list[str]:
    """Every compare.json that the document prints, remarks included."""
    text = next(seeds.glob("002*")).read_text(encoding="utf-8")
    found = re.findall(r"```\n(\{.*?\n\})\n```", text, flags=re.DOTALL)
    assert len(found) == 5
    return found


def names(folder: Path) -> list[str]:
    return sorted(re.sub(STAMP, "T", path.name) for path in folder.iterdir() if path.name != "index.html")


PATTERNS = {
    "one": ["{kind}_T.vis"],
    "ranks": ["{kind}_rank0_T.vis", "{kind}_rank1_T.vis"],
    "steps": [f"{{kind}}_step{step}_rank{rank}_T.vis" for step in (0, 1) for rank in (0, 1)],
}


@pytest.mark.parametrize(("framework", "folder"), [
    ("pytorch", "one"),
    ("mindspore", "steps"),
    *(pytest.param(framework, folder, marks=pytest.mark.slow) for framework, folder in (
        ("pytorch", "ranks"), ("pytorch", "steps"), ("mindspore", "one"), ("mindspore", "ranks"),
    )),
])  # fmt: skip
def test_every_compare_json_of_the_document_gives_files_of_the_documents_names(
    work: Path, seeds: Path, folder: str, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work / folder)
    for at, text in enumerate(seed_examples(seeds)):
        Path("compare.json").write_text(text, encoding="utf-8")
        assert main(["-f", framework, "graph", "-i", "./compare.json", "-o", f"./output{at}"]) == 0
        kind = "compare" if "bench_path" in text else "build"
        assert names(Path(f"output{at}")) == [name.format(kind=kind) for name in PATTERNS[folder]]
        if framework == "mindspore":
            break


def test_graph_visualize_writes_one_file_for_all_steps_and_ranks(work: Path) -> None:
    command = ["graph_visualize", "-tp", "steps/npu_dump", "-gp", "steps/bench_dump", "-o", "out"]
    assert main(command) == 0
    assert names(Path("out")) == ["compare_T.vis.db"]
    (file,) = Path("out").resolve().glob("*.vis.db")
    (config,) = table(file, "tb_config")
    assert (config["rank_list"], config["step_list"]) == ("[0, 1]", "[0, 1]")
    assert {(row["step"], row["rank"]) for row in nodes(file).values()} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert main(["graph_visualize", "-tp", "ranks/npu_dump", "-o", "single"]) == 0
    assert names(Path("single")) == ["build_T.vis.db"]


def test_the_file_type_can_be_chosen_in_either_command(work: Path) -> None:
    assert main(["graph_visualize", "-tp", "ranks/npu_dump", "-o", "a", "--file_type", "vis"]) == 0
    assert names(Path("a")) == ["build_rank0_T.vis", "build_rank1_T.vis"]
    Path("compare.json").write_text('{"npu_path": "ranks/npu_dump"}')
    assert main(["graph", "-i", "compare.json", "-o", "b", "--file_type", "db"]) == 0
    assert names(Path("b")) == ["build_T.vis.db"]


def test_the_log_has_a_line_per_operator_when_asked_for(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = {}
    for wanted in ("true", "false"):
        Path("compare.json").write_text(
            f'{{"npu_path": "one/npu_dump", "bench_path": "one/bench_dump", "is_print_compare_log": {wanted}}}'
        )
        assert main(["graph", "-i", "compare.json", "-o", wanted]) == 0
        shown = capfd.readouterr()
        lines[wanted] = shown.err.splitlines()
        assert "graph ends successfully" in shown.out
        assert "first divergence" in shown.out
    calls = json.loads(Path("one/npu_dump/dump.json").read_text())["data"]
    assert len(lines["true"]) - len(lines["false"]) == len(calls)
    assert any(
        line.startswith("Functional.embedding.0.forward <-> Functional.embedding.0.forward") for line in lines["true"]
    )


def test_the_log_is_on_unless_compare_json_says_otherwise(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("compare.json").write_text('{"npu_path": "one/npu_dump", "bench_path": "one/bench_dump"}')
    assert main(["graph", "-i", "compare.json", "-o", "out"]) == 0
    assert " <-> " in capfd.readouterr().err


def test_old_and_new_spellings_of_the_options_are_taken(work: Path) -> None:
    Path("compare.json").write_text('{"npu_path": "one/npu_dump", "bench_path": "one/bench_dump"}')
    for options in (["-f"], ["-fm"], ["--fuzzy_match"], ["-cs", "-oc"], ["-lm"]):
        assert main(["graph", "-i", "compare.json", "-o", "out", "--quiet", *options]) == 0
    flags = ["-tensor_log", "-progress_log", "-oc", "-fm", "-lm"]
    assert main(["graph_visualize", "-tp", "one/npu_dump", "-gp", "one/bench_dump", "-o", "new", *flags]) == 0


def test_machines_get_one_json_object(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["graph_visualize", "-tp", "ranks/npu_dump", "-gp", "ranks/bench_dump", "-o", "out", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [rank["rank"] for rank in document["ranks"]] == ["rank0", "rank1"]
    assert Path(document["files"][0]).is_file()


def test_no_side_files_are_left_and_the_journal_is_the_plain_one(work: Path) -> None:
    assert main(["graph_visualize", "-tp", "ranks/npu_dump", "-gp", "ranks/bench_dump", "-o", "out", "--quiet"]) == 0
    assert names(Path("out")) == ["compare_T.vis.db"]
    (file,) = Path("out").glob("*.vis.db")
    header = file.read_bytes()[:20]
    assert header[:16] == b"SQLite format 3\x00"
    assert header[18:20] == b"\x01\x01"  # rollback journal; 2 would be write-ahead


def test_many_workers_give_the_same_file_as_one(work: Path) -> None:
    base = ["graph_visualize", "-tp", "steps/npu_dump", "-gp", "steps/bench_dump", "--quiet"]
    assert main([*base, "-o", "one_hand", "--workers", "1"]) == 0
    assert main([*base, "-o", "two_hands", "--workers", "2"]) == 0
    files = [next(Path(folder).resolve().glob("*.vis.db")) for folder in ("one_hand", "two_hands")]
    for name in ("tb_nodes", "tb_stack", "tb_config", "tb_twinprobe", "tb_twinprobe_summary"):
        assert table(files[0], name) == table(files[1], name)


def test_mindspores_backward_calls_lie_where_their_names_say(reference: Path, tmp_path: Path) -> None:
    """Its construct.json hangs all that follows the embedding's first gradient on the language model."""
    dump = next((reference / "mindspore" / "dumps" / "ms_mix_statistics").rglob("dump.json")).parent
    (tmp_path / "compare.json").write_text(json.dumps({"npu_path": str(dump)}))
    assert main(["-f", "mindspore", "graph", "-i", str(tmp_path / "compare.json"), "-o", str(tmp_path / "out")]) == 0
    (file,) = (tmp_path / "out").glob("build_*.vis")
    drawn = json.loads(file.read_text(encoding="utf-8"))["node"]
    path = "Cell.module.module.language_model.embedding"
    for inner in ("dropout.Dropout", "position_embeddings.Embedding", "word_embeddings.Embedding"):
        assert drawn[f"{path}.{inner}.backward.0"]["upnode"] == f"{path}.Embedding.backward.0"
        assert f"{path}.{inner}.backward.0" in drawn[f"{path}.Embedding.backward.0"]["subnodes"]
    assert drawn["Mint.add.0.backward"]["upnode"] == f"{path}.Embedding.backward.0"
    assert drawn["Primitive.gather.Gather.0.backward"]["upnode"] == f"{path}.word_embeddings.Embedding.backward.0"
    around = "Cell.module.module.language_model.TransformerLanguageModel.backward.0"
    assert drawn[f"{path}.Embedding.backward.0"]["upnode"] == around
