"""Counts with their nouns, in messages, logs and output."""


def pluralize(count: int, noun: str, form: str = "") -> str:
    """Return a count with its noun: `1 row`, `2 rows`.

    Args:
        count: the count.
        noun: the noun, as for one.
        form: how to format the count, as for `format`, such as `,`.
    """
    return f"{count:{form}} {noun if count == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"
