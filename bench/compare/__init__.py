"""`python -m bench.compare`: camshaft beside its peers in one run, by turns. Rows are tables, sides are processes of their own.

rows of a group (language_rows.py, ...) -> stands of sides and tasks (stand.py) -> turns (turns.py) -> results, JSON and Markdown.
"""
