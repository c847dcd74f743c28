"""The exceptions that the shell shows as a single line instead of a traceback."""


class WritetimeError(Exception):
    """A fault that the user can act on: its text names the thing at fault and the fix."""


class Transient(WritetimeError):
    """A fault that may pass by itself, as of a server that does not answer: what failed is worth another try."""


def reason_of(fault: BaseException) -> str:
    """Return why something failed: the text of an error that is made for users, else the error's kind with its text.
    Whatever an error holds, its text can be logged and stored: what is no Unicode is escaped."""
    text = str(fault) if isinstance(fault, WritetimeError) else f"{type(fault).__name__}: {fault}"
    return text.encode(errors="backslashreplace").decode()
