"""What numba compiles to read SSTables and commit logs."""
