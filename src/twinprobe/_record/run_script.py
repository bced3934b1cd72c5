"""``twinprobe run train.py``: record a script that knows nothing of the recorder."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

from twinprobe.errors import BadInput, TwinProbeError

CONFIG_VARIABLE = "TWINPROBE_CONFIG"


def run_script(argv: list[str]) -> int:
    """Run ``argv`` (a script and its arguments, or ``-m`` and a module) as Python would, and record it.

    The file named by TWINPROBE_CONFIG says what to record. The first model that is called is watched; a step ends when
    its optimizer has made a step. Returns the exit code of the script.
    """
    as_module = argv[:1] == ["-m"]
    words = argv[1:] if as_module else argv
    if not words:
        raise BadInput("no script to run", hint="twinprobe run --config config.json train.py ARGUMENTS")
    if not as_module and not Path(words[0]).is_file():
        raise BadInput("there is no such script", where=words[0])
    config = os.environ.get(CONFIG_VARIABLE)
    if not config:
        raise BadInput(
            "there is no configuration that says what to record",
            hint=f"--config config.json, or {CONFIG_VARIABLE}=config.json; see docs/record.md",
        )
    from twinprobe._record.torch.callbacks import WholeScript

    recording = WholeScript(config)
    try:
        return _run(words, as_module)
    finally:
        recording.close()


def _run(words: list[str], as_module: bool) -> int:
    before = sys.argv, sys.path[:]
    sys.argv = words
    try:
        if as_module:
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except TwinProbeError:
        raise
    except Exception as error:
        # The traceback as Python prints it, from the script's own first line on.
        trace = error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if file != __file__ and not file.startswith("<frozen runpy") and Path(file).name != "runpy.py":
                break
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        return 1
    finally:
        sys.argv, sys.path[:] = before
    return 0
