"""The folder for screenshots: `pytest tests/browser --screenshots FOLDER`."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--screenshots", metavar="FOLDER", help="Keep screenshots of the web UI in this folder.")
