"""The code that numba compiles to read SSTables and commit logs."""
