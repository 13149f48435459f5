"""`python -m camshaft`: the same as the `camshaft` script."""

from camshaft.cli.__main__ import main

if __name__ == "__main__":
    main()
