"""The one exception that the shell shows as a single line instead of a traceback."""


class WritetimeError(Exception):
    """A fault that the user can act on: its text names the thing at fault and the fix."""
