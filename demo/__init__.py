"""The demo: it sends real flights through the whole platform. The package has the data, the handlers, the assets and
the launcher.
"""
