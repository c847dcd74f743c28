"""Runs the shell command as `python -m writetime`."""

from writetime.cli import main

main()
