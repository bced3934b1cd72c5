"""Trouble inside the recorder: said once per cause, kept in dump_error_info.log, never raised into the training."""

from __future__ import annotations

import logging
import threading
import traceback
from pathlib import Path

logger = logging.getLogger("twinprobe.record")
LOG_NAME = "dump_error_info.log"


def speak() -> None:
    """Show the recorder's own lines even where the program has not set up logging."""
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("twinprobe: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


class Problems:
    """Counts causes. A cause is the kind of error and the line it came from."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def note(self, doing: str, error: BaseException) -> None:
        """Log the first error of each cause in full; count the rest."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown place"
        cause = f"{type(error).__name__} at {place}"
        with self._lock:
            count = self.counts[cause] = self.counts.get(cause, 0) + 1
        if count > 1:
            return
        try:
            said, details = str(error), "".join(traceback.format_exception(error))
        except Exception:  # an error of the user's own kind may fail to say what it is
            said, details = "an error that cannot be shown", cause
        logger.warning("error while %s (%s: %s); recording goes on", doing, type(error).__name__, said)
        self._keep(f"while {doing}: {details}\n")

    def _keep(self, text: str) -> None:
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / LOG_NAME).open("a", encoding="utf-8", errors="replace") as log:
                log.write(text)
        except OSError:
            self.folder = None  # the disk itself is the problem; the console has had the message
