"""The demo: real flights through the whole platform. The data, its enrichment, its assets, and its launcher."""
