"""`python -m cdcflow.cli`: the same as the installed `cdcflow` command."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of the installed command. Ctrl-C during its imports yields no traceback either."""
    try:
        from cdcflow.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
