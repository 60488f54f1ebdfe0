"""`python -m cdcflow.cli`: the same as the installed `cdcflow` command."""

from cdcflow.cli.app import main

main()
