"""The machine's Chromium: the one that `CHROMIUM` names, or one on PATH. Tests that need it are skipped without it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on PATH (chromium, google-chrome); name one by CHROMIUM=/path/to/it"
)


@contextmanager
def browsing(width: int, height: int, **options: Any) -> Iterator[Any]:
    """A browser's context with a screen of this size."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: `make setup`")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_context(viewport={"width": width, "height": height}, color_scheme="light", **options)
        browser.close()
