"""Where the executor finds what it walks: int64 words of thunk records, of a pool's control block, of stamps. The counterpart of
executor.py, shared with all who write or read those words.

  record   entry, args, constant, wait, home, number of factors, 3 x (extent address, divisor), stride; 128 bytes. Home is -1
           where every worker runs all programs; a worker's args are `stride` bytes after those of the one before
  control  one per pool, a 128-byte line per group of writers
"""

from __future__ import annotations

MAX_FACTORS = 3  # extents that a thunk's number of programs may be made of
RECORD_WORDS = 16
ENTRY, ARGS, CONSTANT, WAIT, HOME, N_FACTORS, FACTORS = range(7)
STRIDE = FACTORS + 2 * MAX_FACTORS
EVERYWHERE = -1

# What the timed form writes for a worker and a thunk: ticks at start and end, programs run, the first of them. After a
# worker's thunks comes one for its whole run, of which it writes the start. Nothing is written after the last barrier: the
# caller may have let go of the stamps by then.
STAMP_WORDS = 4
START, END, SIZE, PLACE = range(4)

# Lines of two cache lines each: the neighbour is prefetched along with the one that is wanted.
LINE_WORDS = 16
WAIT_FUNCTION, WAKE_FUNCTION, CORE_FUNCTION, SPIN_BOUND, SHORT_SPIN_BOUND, CALLER_SPIN_BOUND, WORKERS = range(7)
RUN_GENERATION = 1 * LINE_WORDS
RECORDS, FIRST, LAST, FAILED, STOP = range(2 * LINE_WORDS, 2 * LINE_WORDS + 5)
ARRIVED = 3 * LINE_WORDS
GENERATION = 4 * LINE_WORDS
RUN_SLEEPERS = 5 * LINE_WORDS
SLEEPERS = 6 * LINE_WORDS
# Then two lines for each worker: its own (runs seen, spins missed), and one that the others read (the core it is on).
WORKER_LINES = 7 * LINE_WORDS
WORDS_PER_WORKER = 2 * LINE_WORDS
RUNS_SEEN, RUN_MISSES, MISSES = range(3)
CORE = LINE_WORDS
CALLER_MISSES, CALLER_CORE = WORKER_LINES + MISSES, WORKER_LINES + CORE
