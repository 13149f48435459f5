"""Entry point of the command line: the script `camshaft`, `python -m camshaft` and `python -m camshaft.cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. `--version` is answered before typer and the commands are imported, which takes 60 ms."""
    if sys.argv[1:] == ["--version"]:
        from camshaft.version import __version__

        print("camshaft", __version__)
        return
    from camshaft.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
