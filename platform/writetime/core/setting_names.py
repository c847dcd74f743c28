"""Names in the settings that Dagster must accept. If it refused one, all assets would fail."""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

# As Dagster checks it (`dagster._core.definitions.utils.is_valid_owner`).
_OWNER = re.compile(r"team:.+|\b[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}\b")


def _owner(name: str) -> str:
    if not _OWNER.fullmatch(name):
        raise ValueError(
            f"{name!r} is not an owner that Dagster accepts: use a mail address, whose last part has 2 to 7 letters, "
            "or a team, such as team:orders"
        )
    return name


Owner = Annotated[str, AfterValidator(_owner)]
"""The owner of an asset."""

QueueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")]
"""The name of a replay queue."""


def require_distinct(queues: Sequence[str]) -> None:
    """Reject queues that Dagster cannot distinguish.

    Raises:
        ValueError: two have the same name in Dagster.
    """
    names = [re.sub("[.-]", "_", queue) for queue in queues]
    if same := [queue for queue, name in zip(queues, names, strict=True) if names.count(name) > 1]:
        raise ValueError(
            f"queues: Dagster cannot distinguish {' and '.join(same)}: use names that differ in more than '-', '.' and "
            "'_'"
        )
