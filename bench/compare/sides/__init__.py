"""What runs inside a side's process (side.py), a file per library. Only `ours_*.py` import camshaft: a peer's Python has none."""
