"""Settings that must stand before NumPy is imported: one BLAS thread, so that the reference does not fight the workers."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
