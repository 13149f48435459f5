"""The code that runs in a peer's process, one module per library. Only those of `ours/` import camshaft."""
