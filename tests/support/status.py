"""The lines of `writetime status` that concern agents and landing."""

from writetime.cli.screen import LINES, fit
from writetime.cli.status import status_parts
from writetime.core.config import Settings


def status_lines(settings: Settings, *, everything: bool = False) -> list[str]:
    """Return the lines, without those of servers, of which there are three."""
    return fit(status_parts(settings, everything=everything), None if everything else LINES - 3)
