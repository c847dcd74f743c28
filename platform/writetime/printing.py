"""Text of strangers, as a terminal may have it."""


def printable(text: str) -> str:
    """Return text on one line and without commands to a terminal: such characters are shown as Python escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
