"""`python -m bench.compare`: measure camshaft and peer libraries in interleaved rounds of one run.

Tables of rows (suites/language_rows.py, ...) define suites of peers and tasks (suites/suite.py); each peer runs in its own
process (process.py); interleaved.py runs the rounds, results.py stores rows as JSON, report.py writes Markdown.
"""
