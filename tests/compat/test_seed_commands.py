"""The commands of the users' own documents, run as printed through the drop-in distribution."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import forward, tensor, write_dump
from warm_python import run_warm

# What the command that pip installs does.
SCRIPT = """
import sys
from importlib.metadata import entry_points
del sys.argv[0]
(command,) = {one.value: one for one in entry_points(group="console_scripts", name=sys.argv[0])}.values()
sys.exit(command.load()())
"""
YAML = {
    "api_mapping.yaml": r"The following is an example of the file content:\n\n(ms_api: Functional\.abs.*?)\n# ms_args",
    "cell_mapping.yaml": r"(fc2\.Dense: fc2\.Linear\nconv1\.Conv2d: conv3\.Conv2d)",
    "layer_mapping.yaml": r"(ParallelAttention:.*?network_with_loss: module)",
    "config.yaml": r"(api:\n- Distributed\.all_reduce.*?MeanRelativeErr)",
}


def commands(seed: str, start: str) -> list[str]:
    found = re.findall(rf"^\s*({start} .*)$", seed, flags=re.MULTILINE)
    return sorted({line.strip() for line in found if "<" not in line and "{" not in line and line.isascii()})


@pytest.fixture
def place(seeds: Path, reference: Path, tmp_path: Path) -> Path:
    """A folder with everything the printed commands speak of."""
    text = next(seeds.glob("004*.txt")).read_text()
    for name, pattern in YAML.items():
        match = re.search(pattern, text, flags=re.DOTALL)
        assert match, name
        (tmp_path / name).write_text(match[1])
    (tmp_path / "data_mapping.yaml").write_text(
        "Functional.flash_attention_score.4.forward.input.0: NPU.npu_fusion_attention.4.forward.input.0\n"
        "Cell.relu.ReLU.forward.0.input.0: Module.module.language_model.embedding.word_embedding."
        "VocabParallelEmbedding.forward.0.input.0\n"
    )
    dumps = reference / "mindspore/dumps"
    for side, source in (("target_dump", "ms_mix_statistics"), ("golden_dump", "pt_mix_statistics")):
        folder = next((dumps / source / "step0").iterdir())
        shutil.copytree(folder, tmp_path / side)
        shutil.copytree(folder, tmp_path / side / "step0" / "rank0")
        shutil.copy(next((reference / "msprobe/dumps").glob("debug_stat_a/step0/*/debug.json")), tmp_path / side)
    (tmp_path / "input_dir").mkdir()
    for path in (reference / "msprobe/results/dist_xlsx").glob("*.xlsx"):
        shutil.copy(path, tmp_path / "input_dir")
    return tmp_path


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    words = [str(folder) + word if word.startswith(("/target_dump", "/golden_dump")) else word for word in words]
    return run_warm(SCRIPT, *words, folder=folder)


def test_every_printed_compare_command_works(seeds: Path, place: Path) -> None:
    printed = commands(next(seeds.glob("004*.txt")).read_text(), "msprobe compare")
    assert len(printed) >= 10
    for command in printed:
        if "--rank" in command:
            continue  # kernel folders, below
        done = run(command, place)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout.rstrip().endswith("msprobe compare ends successfully."), command


def test_the_printed_kernel_command_works(seeds: Path, reference: Path, tmp_path: Path) -> None:
    for side, source in (("target_dump", "kernel_dump_A"), ("golden_dump", "kernel_dump_B")):
        shutil.copytree(reference / "mindspore/dumps" / source, tmp_path / side)
    (command,) = [
        line for line in commands(next(seeds.glob("004*.txt")).read_text(), "msprobe compare") if "--rank" in line
    ]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name.rpartition("_")[0] for path in (tmp_path / "output").iterdir()] == ["compare_result_0_0"]


def test_the_printed_merge_command_works(seeds: Path, place: Path) -> None:
    (command,) = commands(next(seeds.glob("004*.txt")).read_text(), "msprobe merge_result")
    done = run(command, place)
    assert done.returncode == 0, done.stderr
    assert list((place / "output_dir").glob("multi_ranks_compare_merge_*.xlsx"))


def test_the_drop_in_says_so_when_the_real_tool_is_there(tmp_path: Path) -> None:
    real = tmp_path / "mindstudio_probe-26.2.0.dist-info"
    real.mkdir()
    (real / "METADATA").write_text("Metadata-Version: 2.1\nName: mindstudio-probe\nVersion: 26.2.0\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['msprobe', '--version']\n"
        "import msprobe; msprobe.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "mindstudio-probe 26.2.0 is installed too" in done.stderr


@pytest.mark.parametrize(
    "program",
    [
        "from msprobe.pytorch import PrecisionDebugger as x, seed_all; print(x.__module__)",
        "from ait_llm import DumpConfig as x, register_hook; print(x.__module__)",
    ],
)
def test_the_imports_of_older_scripts_are_answered(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("twinprobe.")


def test_the_old_names_go_on_where_a_rank_is_lost_unless_told_otherwise(tmp_path: Path) -> None:
    """Scripts written for the older tools stop at exit codes other than 0; the warning is there all the same."""
    call = {"Torch.f.0.forward": forward([tensor()], [tensor()])}
    for side, ranks in (("t", (0, 1)), ("g", (0,))):
        for rank in ranks:
            write_dump(tmp_path / side / f"rank{rank}", call)
    command = "msprobe compare -tp t -gp g -o out"
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "only t has rank1" in done.stderr
    assert run(f"{command} --no-allow-missing", tmp_path).returncode == 2
    assert run(command.replace("msprobe", "twinprobe"), tmp_path).returncode == 2
