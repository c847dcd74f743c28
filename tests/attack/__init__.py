"""Attacks on every input: what is not meant to be read is refused with an error, and harms nothing else.

Each module is a command, `python -m tests.attack.<module>`, that tries until its time is over and prints what it tried
and found.
"""
