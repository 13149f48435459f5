"""`python -m camshaft.cli`: the command line where no script was installed."""

from camshaft.cli.main import main

main()
