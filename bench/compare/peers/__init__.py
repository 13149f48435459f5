"""The code that runs in a peer's process, one module per library. Only `ours_*.py` import camshaft."""
