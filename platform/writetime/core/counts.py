"""Counts with their nouns, in messages, logs and output."""


def pluralize(count: int, noun: str, form: str = "") -> str:
    """Return a count with its noun, which is given as for one: `1 row`, `2 rows`. `form` formats the count, as in
    `format`, such as `,`.
    """
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{count:{form}} {noun}{ending}"
