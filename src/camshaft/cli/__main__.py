"""The start of the command line: the script `camshaft`, `python -m camshaft` and `python -m camshaft.cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of all three. The version alone is told without typer and the commands, which take 60 ms to import."""
    if sys.argv[1:] == ["--version"]:
        from camshaft.version import __version__

        print("camshaft", __version__)
        return
    from camshaft.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
