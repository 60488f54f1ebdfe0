"""`python -m cdcflow.cli`: the same as the installed `cdcflow` command."""

from __future__ import annotations

import sys

_ASKING = ("status", "doctor", "get", "history", "range", "diff", "transaction", "consumer", "log", "bundle")
ABOUT_LOGS = frozenset({*_ASKING, "plan", "apply", "table", "ctl", "drop"})
"""Commands that run without Spark, and so without pandas. Commands that run a daemon prevent the import of pandas
themselves."""


def main() -> None:
    """The entry point of the installed command. Ctrl-C during its imports yields no traceback either."""
    try:
        if ABOUT_LOGS.intersection(sys.argv[1:2]):
            from cdcflow.daemon.lean import without_luxuries

            without_luxuries()
        from cdcflow.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
