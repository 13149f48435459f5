"""`python -m camshaft`: the same as the `camshaft` script. The last of the layout."""

from camshaft.cli.main import main

if __name__ == "__main__":
    main()
