"""The command line: commands parse, call one library function and print. Nothing imports it."""
