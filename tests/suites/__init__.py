"""The servers' own test suites as a workload: run next to a daemon, then every captured table is compared.

The repository contains no part of a suite: `fetch` gets them from the host's package archive. `mtr` reads the language
of MySQL's and MariaDB's suites, `regress` runs PostgreSQL's.
"""
