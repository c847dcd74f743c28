"""The definition of a change, which is the common form of all data that is read, and its position in its partition."""
