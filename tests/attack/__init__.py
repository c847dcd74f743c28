"""Attacks on each input: invalid input must be refused with an error, and must not harm anything else.

Each module is a command, `python -m tests.attack.<module>`. It tries inputs until its time is over, and prints the
numbers of inputs and its findings.
"""
