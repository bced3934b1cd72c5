"""The page as a tab of TensorBoard, named TWINPROBE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.plugins import base_plugin  # type: ignore[import-untyped, import-not-found, unused-ignore]

from twinprobe._graph.read.open import has_graphs
from twinprobe._view.app import ViewApp


class TwinProbePlugin(base_plugin.TBPlugin):  # type: ignore[misc, unused-ignore]
    """Shows the graph files under TensorBoard's --logdir."""

    plugin_name = "twinprobe"

    def __init__(self, context: base_plugin.TBContext) -> None:
        super().__init__(context)
        self._place = Path(context.logdir or ".").expanduser()
        self._active = False

    def get_plugin_apps(self) -> dict[str, Any]:
        """One app for everything under /data/plugin/twinprobe/."""
        return {"/*": _Mounted(ViewApp(self._place))}

    def is_active(self) -> bool:
        """Whether there is a graph file to show; once there was one, the tab stays."""
        self._active = self._active or (self._place.is_dir() and has_graphs(self._place))
        return self._active

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """The tab's name and the module that draws it."""
        return base_plugin.FrontendMetadata(
            es_module_path="/static/index.js", tab_name="TWINPROBE", disable_reload=True, remove_dom=False
        )


class _Mounted:
    """TensorBoard passes whole paths: strip the prefix, as WSGI expects."""

    def __init__(self, app: ViewApp) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        prefix = f"/data/plugin/{TwinProbePlugin.plugin_name}"
        path = environ.get("PATH_INFO", "")
        moved = {"SCRIPT_NAME": environ.get("SCRIPT_NAME", "") + prefix, "PATH_INFO": path.removeprefix(prefix) or "/"}
        return self._app({**environ, **moved}, start)
