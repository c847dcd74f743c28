"""The change: the common form of all data that is read, and its place in its partition."""
