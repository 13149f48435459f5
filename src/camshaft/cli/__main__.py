"""Entry point of the command line: the script `camshaft`, `python -m camshaft` and `python -m camshaft.cli`."""

from __future__ import annotations

import sys

from camshaft.cli import exits


def main() -> None:
    """Run the command line; exit with its status unless that is 0. `exits` has Ctrl-C and output that cannot be written."""
    exits.leave_on_interrupt()
    status = exits.status_of(_run)
    if status:
        sys.exit(status)


def _run() -> None:
    """Answer `--version` before typer and the commands are imported, which takes 60 ms."""
    if sys.argv[1:] == ["--version"]:
        from camshaft.version import __version__

        print("camshaft", __version__)
        return
    from camshaft.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
