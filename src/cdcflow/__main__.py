"""`python -m cdcflow`: the same as the installed `cdcflow` command."""

from cdcflow.cli.app import main

if __name__ == "__main__":
    main()
