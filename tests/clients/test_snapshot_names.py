"""Names of snapshots, which become folders of the node: invalid ones are refused before any request."""

import pytest
from click.testing import CliRunner

from writetime.cli.main import main
from writetime.clients.node_snapshots import clear_snapshot, new_tag
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError

WRONG = ["..", ".", "", "a/b", "../x", "-t", "a b", "a\n", "ä", "x" * 201]


@pytest.mark.parametrize("tag", WRONG)
def test_a_name_that_may_not_be_a_folder_is_refused(tag: str) -> None:
    answer = CliRunner().invoke(main, ["snapshot", "shop.orders", f"--tag={tag}"])
    assert answer.exit_code == 1
    assert f"a snapshot cannot be named {tag!r}" in answer.output


@pytest.mark.parametrize("tag", WRONG)
def test_an_invalid_name_is_not_deleted(tag: str) -> None:
    with pytest.raises(WritetimeError, match="a snapshot cannot be named"):
        clear_snapshot(Settings(), "shop.orders", tag)


def test_snapshots_of_one_second_have_different_names() -> None:
    assert len({new_tag() for _ in range(1000)}) == 1000
