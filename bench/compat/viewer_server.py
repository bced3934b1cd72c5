"""TensorBoard with the viewer inside, and the questions that its page asks."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

_PATIENCE = 60.0


class ViewerServer:
    """A running TensorBoard; leaves no process behind."""

    def __init__(self, command: Path, logdir: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._log = (logdir.parent / f"{logdir.name}.log").open("wb")
        self._process = subprocess.Popen(
            [str(command), "--logdir", str(logdir), "--host", "127.0.0.1", "--port", str(self._port)],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip

    @property
    def page(self) -> str:
        """The address of the page in a browser."""
        return f"http://127.0.0.1:{self._port}/#graph_ascend"

    @property
    def peak_mb(self) -> int:
        """The most memory that the server has used."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return round(int(peak.split()[1]) / 1024)

    def __enter__(self) -> ViewerServer:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                self.runs()
            except (OSError, ValueError):
                if time.monotonic() > end or self._process.poll() is not None:
                    self.__exit__(None, None, None)
                    raise
                time.sleep(0.3)
            else:
                return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._log.close()

    def runs(self) -> dict[str, Any]:
        """Which files the viewer has found: run name to type and tags."""
        return dict(json.loads(self._get("load_meta_dir"))["data"])

    def load(self, run: str, info: dict[str, Any]) -> dict[str, Any]:
        """Open a file; return what later questions must carry."""
        meta = {"run": run, "tag": info["tags"][0], "type": info["type"], "lang": "en"}
        answer = self._get("loadGraphData", **meta)
        if "success" not in answer and '"done": true' not in answer:
            raise ValueError(f"the viewer did not open {meta['tag']}: {answer[:300]}")
        return meta | {"microStep": -1, "rank": 0, "step": 0}

    def ask(self, question: str, meta: dict[str, Any], **more: Any) -> Any:
        """Ask one of the viewer's endpoints; an answer without success is an error."""
        body = json.dumps({"metaData": meta, **more}).encode()
        request = urllib.request.Request(self._address(question), body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer = json.loads(reply.read())
        if not answer.get("success"):
            raise ValueError(f"{question}: {answer}")
        return answer.get("data")

    def _get(self, question: str, **arguments: str) -> str:
        address = f"{self._address(question)}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(address, timeout=120) as reply:
            return str(reply.read().decode())

    def _address(self, question: str) -> str:
        return f"http://127.0.0.1:{self._port}/data/plugin/graph_ascend/{question}"
