"""Waiting for programs that follow tables. Reading a table costs more CPU than most of their work, so it is rare."""

from functools import partial

from tests.support import waiting

wait_for = partial(waiting.wait_for, pause=0.3)
