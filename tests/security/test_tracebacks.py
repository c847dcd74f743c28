"""A bug shows its traceback, without the passwords of addresses and of settings, also those of the errors before it."""

import subprocess
import sys
import traceback

import pytest
from dagster import RetryRequested
from pydantic import ValidationError

from writetime.core.config import Settings
from writetime_dagster.assets.failures import retry_if_transient

_PLACE = "s3://user:hush-of-a-bucket@bucket/x?secret_key=hush-of-a-key&region=x"
_PROGRAM = f"""
import sys, threading
from writetime.__main__ import run
from writetime.core import config

def load(**_):
    try:
        raise FileNotFoundError(2, "No such file", {_PLACE!r})
    except OSError as e:
        raise KeyError({_PLACE!r}) from e

def in_a_thread():
    try:
        load()
    finally:
        raise RuntimeError("in a thread, at " + {_PLACE!r})

if sys.argv[1] == "in a thread":
    config.load = lambda: threading.Thread(target=in_a_thread).start() or sys.exit()
else:
    config.load = load
sys.argv[1:] = ["queue", "inspect"]
run()
"""


@pytest.mark.parametrize("place", ["", "in a thread"])
def test_python_shows_a_bug_of_a_command_without_passwords(place: str) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, place], capture_output=True, text=True, check=False)
    assert "Traceback (most recent call last)" in done.stderr
    assert "No such file: 's3://user@bucket/x?secret_key=***&region=x'" in done.stderr
    assert "KeyError: 's3://user@bucket" in done.stderr
    assert place in done.stderr
    assert "hush" not in done.stdout + done.stderr.replace(_PROGRAM, "")


def test_dagster_shows_a_bug_of_an_asset_without_passwords() -> None:
    @retry_if_transient()
    def asset() -> None:
        try:
            raise FileNotFoundError(2, "No such file", _PLACE)
        except OSError as e:
            raise RuntimeError(f"at {_PLACE}", 5) from e

    with pytest.raises(RetryRequested) as raised:
        asset()
    shown = "".join(traceback.format_exception(raised.value))
    assert "RuntimeError: ('at s3://user@bucket/x" in shown
    assert "No such file: 's3://user@bucket/x" in shown
    assert "hush" not in shown


@pytest.mark.parametrize("section", [{"cassandra": {"passwort": "hush"}}, {"passwort": "hush"}])
def test_an_error_of_settings_does_not_show_them(section: object) -> None:
    """The chain of a bug that comes while settings are described has it."""
    with pytest.raises(ValidationError) as raised:
        Settings.model_validate(section)
    assert "passwort" in str(raised.value)
    assert "hush" not in str(raised.value)
