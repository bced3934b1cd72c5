"""Record and compare inference: ``from twinprobe.llm import DumpConfig, register_hook``."""

from __future__ import annotations

from twinprobe._record.llm.atb import atb_json_to_onnx
from twinprobe._record.llm.config import DumpConfig
from twinprobe._record.llm.folders import dump_data
from twinprobe._record.llm.hook import DumpHandle, register_hook

__all__ = ["DumpConfig", "DumpHandle", "atb_json_to_onnx", "dump_data", "register_hook"]
