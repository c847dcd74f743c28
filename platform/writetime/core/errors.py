"""The exceptions that the command line shows as one line without a traceback. No text of an error has a password."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

# delta-rs formats its errors for a terminal, with colours and with each cause on a separate line.
_CAUSE = re.compile(r"\s*\x1b\[\d*m\u21b3\x1b\[0m\s*")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
# Addresses of stores may have a password, and options that are secrets. Clients quote a whole address in their errors.
# A password may have a slash, although it should be `%2F`: secret keys of S3 often have one. A number before a slash is
# a port.
_PASSWORD = re.compile(r"(?<=://)([^\s/:@'\"\[]*):(?:[^\s/'\"]*@|(?!\d*(?:[/?#'\",;)\s]|$))(?:(?!://)\S)*?@)")
_SECRET_OPTION = re.compile(
    r"([?&][\w.-]*(?:key|token|secret|sig|signature|sas|password|pass|pwd|credential)=)[^\s&'\"]+", re.IGNORECASE
)


class WritetimeError(Exception):
    """A fault that the user can fix: its text names the fault and the remedy."""

    def __init__(self, text: str = "") -> None:
        super().__init__(without_passwords(text))


class MissingTable(WritetimeError):
    """A table that a command cannot find. Its name may be misspelt, or it was never written."""

    def __init__(self, text: str, table: str = "") -> None:
        super().__init__(text)
        self.table = table


class NotInLake(MissingTable):
    """A table that the lake does not have. Its changes may still be on their way."""


class Transient(WritetimeError):
    """A fault that may pass by itself, such as a server that does not answer: a retry may succeed."""


def reason_of(fault: BaseException) -> str:
    """Return the reason of a failure: the text of an error for users, else the error's kind with its text. Invalid
    Unicode is escaped, so the result can always be logged and stored.
    """
    text = plain_text(fault)
    # Not `type(fault).__name__`: a metaclass may define it.
    text = text if isinstance(fault, WritetimeError) else f"{type.__dict__['__name__'].__get__(type(fault))}: {text}"
    return text.encode(errors="backslashreplace").decode()


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Add a path to an operating system's error without one: those of writing and syncing an open file have none."""
    try:
        yield
    except OSError as e:
        if e.errno is not None and e.filename is None:
            e.filename = str(path)
        raise


def plain_text(fault: BaseException) -> str:
    """Return the text of an error without the colours of a terminal and without passwords, and with its causes on one
    line. An error of another program may have any `__str__`: if that raises, the text names what it raised.
    """
    try:
        # Also the methods of a subclass of `str` may raise.
        text = str.__str__(str(fault))
    except BaseException as e:
        text = f"(no text: its __str__ raised {type.__dict__['__name__'].__get__(type(e))})"
    text = without_passwords(text)
    return _COLOUR.sub("", _CAUSE.sub(": ", text)).strip() if "\x1b" in text else text


def hide_passwords(fault: BaseException) -> None:
    """Take the passwords and the secret options of addresses out of an error and the errors that led to it, where
    another program will show them with their traceback.
    """
    found: BaseException | None = fault
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        found.args = tuple(without_passwords(part) if isinstance(part, str) else part for part in found.args)
        if isinstance(found, OSError) and isinstance(found.filename, str):
            found.filename = without_passwords(found.filename)
        found = found.__cause__ or found.__context__


def without_passwords(text: str) -> str:
    """Return a text without the passwords and the secret options of the addresses in it."""
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1@", text)) if "://" in text else text
