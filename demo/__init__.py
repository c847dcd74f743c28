"""The demo: real flights through the whole platform. The data, what becomes of it, its assets, and its launcher."""
