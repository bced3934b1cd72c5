"""``llm dump``: the environment that the program gets, what is made of its files, and refusals that say why.

The program is a stand-in: it reads the environment as the dumping library does and writes a dump to the known layout.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from llm_command import Said
from llm_dumps import Sizes, decoder_values, write_torch

Run = Callable[..., Said]
HERE = Path(__file__).parent

STAND_IN = f"""
import json, os, sys
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
from llm_dumps import Sizes, atb_layer, atb_model, decoder_values, write_atb_model

out = Path(os.environ["ATB_OUTPUT_DIR"])
assert os.environ["ATB_OUTPUT_DIR"].endswith("/")
name = "msit_dump_" + os.environ["ATB_TIMESTAMP"] if "newer" in sys.argv else "ait_dump"
root = out / name
wanted = {{key: value for key, value in os.environ.items() if key.startswith(("ATB_", "LCCL_", "HCCL_", "LD_PRELOAD"))}}
(out / "environment.json").write_text(json.dumps(wanted))
types = os.environ["ATB_DUMP_TYPE"].split("|")
sizes = Sizes(layers=2, hidden=8, kv=8, wide=12, vocab=10)
first, last = map(int, os.environ["ATB_SAVE_TENSOR_RANGE"].split(",")[:2])
numbers = range(first, last + 1) if "tensor" in types else ()
rounds = {{number: decoder_values(sizes, seed=number) for number in numbers}}
write_atb_model(root, "0_4242", rounds, atb_model(2, atb_layer()))
if os.environ["ATB_SAVE_CPU_PROFILING"] == "1":
    folder = root / "cpu_profiling" / "4242"
    folder.mkdir(parents=True)
    lines = ["[Linear_1]:runnerSetupTime:10, tilingTime:3", "[Linear_1]:kernelExecuteTime:20, waitTime:1"]
    text = "\\n".join([*lines, "[Norm_2]:kernelExecuteTime:5"])
    (folder / "operation_statistic_0.txt").write_text(text)
print("the program says: done", *sys.argv[1:])
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders that look like CANN and ATB. Nothing is preloaded: the loader passes over a file that is no library."""
    toolkit, library = tmp_path / "cann", tmp_path / "atb" / "lib" / "libatb.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF....\0_ZN3atb5Probe9SaveTensorENSt7__cxx1112basic_stringE\0")
    for flavour in (0, 1):
        probe = toolkit / "tools" / "ait_backend" / "dump" / f"libatb_probe_abi{flavour}.so"
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(toolkit))
    monkeypatch.setenv("ATB_HOME_PATH", str(tmp_path / "atb"))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    return tmp_path


@pytest.fixture
def program(tmp_path: Path) -> str:
    """The command line of the stand-in."""
    path = tmp_path / "run.py"
    path.write_text(STAND_IN)
    return f"{sys.executable} {path} patches/models/modeling_xxx.py"


def environment(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "environment.json").read_text())
    return found


def test_the_documents_second_step_works_as_printed(llm: Run, installed: Path, program: str) -> None:
    out = installed / "out"
    said = llm("dump", "--exec", program, "--type", "tensor", "model", "-o", out)
    assert said.code == 0, said.err
    assert "the program says: done patches/models/modeling_xxx.py" in said.out
    assert (out / "ait_dump" / "tensors" / "0_4242" / "0").is_dir()
    assert (out / "ait_dump" / "model" / "4242").is_dir()
    told = environment(out)
    expected = {
        "ATB_DUMP_TYPE": "tensor|model|layer", "ATB_SAVE_TENSOR": "1", "ATB_SAVE_TENSOR_TIME": "1",
        "ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER": "1", "ATB_SAVE_TENSOR_RANGE": "0,0", "ATB_SAVE_CHILD": "1",
        "ATB_SAVE_TILING": "0", "ATB_SAVE_TENSOR_PART": "2", "ATB_SAVE_CPU_PROFILING": "0", "ATB_AIT_LOG_LEVEL": "1",
        "ATB_CUR_PID": str(os.getpid()), "ATB_OUTPUT_DIR": f"{out}/",
    }  # fmt: skip
    assert {name: told.get(name) for name in expected} == expected
    assert told["LD_PRELOAD"].endswith("libatb_probe_abi1.so")
    for name in (
        "ATB_SAVE_TENSOR_IDS",
        "ATB_SAVE_TENSOR_RUNNER",
        "ATB_DEVICE_ID",
        "ATB_SAVE_SYMLINK",
        "ATB_DUMP_CONFIG",
    ):
        assert name not in told


def test_all_four_steps_one_after_another(llm: Run, installed: Path, program: str) -> None:
    sizes = Sizes(layers=2, hidden=8, kv=8, wide=12, vocab=10)
    golden = write_torch(installed / "torch_dump" / "7_npu0", {0: decoder_values(sizes)}, 2)
    assert llm("dump", "--exec", program, "--type", "tensor", "model", "-o", installed / "out").code == 0
    mine = installed / "out" / "ait_dump" / "tensors" / "0_4242" / "0"
    said = llm("compare", "-gp", golden / "0", "-mp", mine, "-o", installed / "report")
    assert said.code == 0, said.err
    assert "No divergence" in said.out


def test_every_option_reaches_the_program(llm: Run, installed: Path, program: str) -> None:
    out = installed / "out"
    config = installed / "config.json"
    config.write_text("{}")
    said = llm(
        "dd", "--exec", program, "--type", "tensor", "stats", "op", "-sd", "-ids", "2,3_1", "-er", "3,5,7,7", "-child",
        "False", "-time", "2", "-opname", "LinearOp", "-tiling", "-stp", "1", "-o", out, "-device", "1", "-seed",
        "-symlink", "-config", config, "-l", "debug",
    )  # fmt: skip
    assert said.code == 0, said.err
    expected = {
        "ATB_DUMP_TYPE": "tensor|stats|op", "ATB_SAVE_TENSOR": "2", "ATB_SAVE_TENSOR_TIME": "2",
        "ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER": "0", "ATB_SAVE_TENSOR_IDS": "2,3_1", "ATB_SAVE_TENSOR_RANGE": "3,5,7,7",
        "ATB_SAVE_CHILD": "0", "ATB_SAVE_TILING": "1", "ATB_SAVE_TENSOR_PART": "1",
        "ATB_SAVE_TENSOR_RUNNER": "linearop", "ATB_SAVE_TENSOR_STATISTICS": "1", "ATB_SAVE_SYMLINK": "1",
        "ATB_DEVICE_ID": "1",
        "ATB_DUMP_CONFIG": str(config), "ATB_AIT_LOG_LEVEL": "0", "LCCL_DETERMINISTIC": "1",
        "HCCL_DETERMINISTIC": "true", "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
    }  # fmt: skip
    told = environment(out)
    assert {name: told.get(name) for name in expected} == expected


def test_profiling_texts_become_csv_and_topologies_onnx(llm: Run, installed: Path, program: str) -> None:
    out = installed / "out"
    assert llm("dump", "--exec", program, "--type", "cpu_profiling", "onnx", "-o", out).code == 0
    folder = out / "ait_dump" / "cpu_profiling" / "4242"
    assert [path.name for path in folder.iterdir()] == ["operation_statistic_0.csv"]
    with (folder / "operation_statistic_0.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "opname": "Linear_1", "execute_kernelExecuteTime": "20", "execute_waitTime": "1",
        "setup_runnerSetupTime": "10", "setup_tilingTime": "3",
    }  # fmt: skip
    assert rows[1]["execute_kernelExecuteTime"] == "5"
    assert environment(out)["ATB_DUMP_TYPE"] == "cpu_profiling|onnx|model|op|layer"
    onnx = (out / "ait_dump" / "model" / "4242" / "Tiny.onnx").read_bytes()
    assert onnx[:2] == b"\x08\x08"
    for name in (b"LinearOperation_1_1_0_0", b"RmsNormOperation", b"elewiseType", b"Tiny_input_0"):
        assert name in onnx


def test_the_onnx_file_is_one_that_onnx_reads(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from llm_dumps import atb_layer, atb_model, write_atb_model

    from twinprobe.llm import atb_json_to_onnx

    root = write_atb_model(tmp_path / "ait_dump", "0_1", {}, atb_model(1, atb_layer()))
    model = onnx.load(str(atb_json_to_onnx(next(root.glob("model/1/*.json")))))
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("LinearOperation") == 6
    assert kinds[0] == "WordEmbedding"


def test_a_newer_librarys_folder_gets_the_name_that_was_asked_for(llm: Run, installed: Path, program: str) -> None:
    assert llm("dump", "--exec", f"{program} newer", "-o", installed / "a").code == 0
    assert (installed / "a" / "ait_dump" / "tensors").is_dir()
    assert llm("dump", "--exec", f"{program} newer", "-o", installed / "b", "--layout", "msit").code == 0
    assert [path.name[:10] for path in (installed / "b").iterdir() if path.is_dir()] == ["msit_dump_"]


def test_a_program_that_fails_is_shown_with_its_exit_code_and_last_lines(llm: Run, installed: Path) -> None:
    script = installed / "fails.sh"
    script.write_text("echo starting\necho 'no such model' >&2\nexit 7\n")
    said = llm("dump", "--exec", f"bash {script}", "-o", installed / "out")
    assert said.code == 2
    assert "exit code 7" in said.err
    assert "no such model" in said.err


def test_a_process_left_behind_does_not_keep_us_waiting(llm: Run, installed: Path) -> None:
    script = installed / "leaves.sh"
    script.write_text(f"sleep 3000 &\necho $! > {installed}/left\nexit 3\n")
    assert llm("dump", "--exec", f"bash {script}", "-o", installed / "out").code == 2
    os.kill(int((installed / "left").read_text()), signal.SIGKILL)  # fails if it was waited for


def test_a_program_that_dumps_nothing_is_told(llm: Run, installed: Path) -> None:
    said = llm("dump", "--exec", "true", "-o", installed / "out")
    assert said.code == 2
    assert "nothing was dumped" in said.err


@pytest.mark.parametrize("missing", ["ASCEND_TOOLKIT_HOME", "ATB_HOME_PATH"])
def test_without_the_libraries_it_refuses_and_says_which(
    llm: Run, installed: Path, program: str, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv(missing)
    said = llm("dump", "--exec", program, "-o", installed / "out")
    assert said.code == 2
    assert missing in said.err
    assert "set_env.sh" in said.err
    monkeypatch.setenv(missing, str(installed / "nowhere"))
    assert missing in llm("dump", "--exec", program, "-o", installed / "out").err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--exec", "run.sh > log"), "no shell"),
        (("--exec", "a; b"), "no shell"),
        (("--exec", "  "), "is empty"),
        (("--exec", "'unclosed"), "quotation"),
        (("--exec", "/no/such/program"), "cannot be started"),
        (("--exec", "true", "-ids", "1,"), "-ids"),
        (("--exec", "true", "-er", "5"), "-er"),
        (("--exec", "true", "-er", "5,3"), "after its last"),
        (("--exec", "true", "-er", ",".join(["1,2"] * 200)), "-er"),
        (("--exec", "true", "--type", "stats"), "stats needs tensor"),
        (("--exec", "true", "--type", "other"), "invalid choice"),
        (("--exec", "true", "-time", "9"), "invalid choice"),
        (("--exec", "true", "-config", "/no/such/file"), "does not exist"),
        (("--exec", "true", "-opname", "a b"), "-opname"),
        ((), "--exec"),
    ],
)
def test_bad_options_are_refused(llm: Run, installed: Path, words: tuple[str, ...], complaint: str) -> None:
    said = llm("dump", *words, "-o", installed / "out")
    assert said.code == 2
    assert complaint in said.err
