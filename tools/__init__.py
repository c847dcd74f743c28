"""Tools for developers. They are not a part of the platform."""
