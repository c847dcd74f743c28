"""Fault tests: real processes, real signals, real servers, and one checker at the end of every test."""
