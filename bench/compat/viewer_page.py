"""The viewer's page in Chromium: open a node, look for its child, take a picture."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import sync_playwright

_CHROMIUM = "/usr/bin/chromium"


def open_in_browser(address: str, node: str, child: str, picture: Path) -> None:
    """Double-click a node and wait until the label of a child appears; raises if it does not."""
    with sync_playwright() as playwright:
        path = _CHROMIUM if Path(_CHROMIUM).exists() else None
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1600, "height": 1000})
            page.goto(address)
            frame = page.frame_locator("iframe")
            label = frame.locator("text", has_text=node).first
            label.wait_for(state="visible", timeout=60_000)
            box = label.bounding_box()
            assert box is not None
            # The label itself takes no clicks; what lies under it does.
            page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            frame.locator("text", has_text=child).first.wait_for(state="visible", timeout=30_000)
            page.screenshot(path=str(picture))
        finally:
            browser.close()
