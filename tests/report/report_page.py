"""What a reader sees of a report page."""

from __future__ import annotations

from playwright.sync_api import Page


def shown_names(page: Page) -> list[str]:
    return page.locator("#table tbody tr[data-row] td.lead").all_text_contents()


def shown_rows(page: Page) -> list[int]:
    return [
        int(text.replace(",", "")) - 1
        for text in page.locator("#table tbody tr[data-row] td:first-child").all_text_contents()
    ]
