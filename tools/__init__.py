"""Tools of developers, not a part of the platform."""
