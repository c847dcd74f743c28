"""The change: what everything that is read becomes, and its place in its partition."""
