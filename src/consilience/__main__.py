"""`python -m consilience`."""

from consilience.cli.app import main

main()
