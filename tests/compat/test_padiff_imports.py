"""What scripts written for PaDiff import, answered by TwinProbe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_every_name_of_both_generations_is_there() -> None:
    done = run(
        "import padiff\n"
        "from padiff import auto_diff, LayerMap, assign_weight, add_special_init\n"
        "from padiff import check_dataloader, check_report, check_params, check_weights, check_grads\n"
        "from padiff import create_model, set_dump_root_path, get_dump_root_path\n"
        "print({getattr(padiff, name).__module__.partition('.')[0] for name in padiff.__all__})\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("{'twinprobe', 'padiff'}", "{'padiff', 'twinprobe'}")


def test_importing_it_imports_no_framework() -> None:
    done = run("import sys, padiff; print([name for name in ('torch', 'paddle', 'mindspore') if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_an_unknown_name_is_an_import_error() -> None:
    done = run("from padiff import cinn_diff")
    assert "cannot import name 'cinn_diff'" in done.stderr


def test_it_says_so_when_the_real_tool_is_there(tmp_path: Path) -> None:
    real = tmp_path / "padiff-0.2.0.dist-info"
    real.mkdir()
    (real / "METADATA").write_text("Metadata-Version: 2.1\nName: padiff\nVersion: 0.2.0\n")
    done = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport padiff")
    assert "padiff 0.2.0 is installed too" in done.stderr
