"""The language of MySQL's and MariaDB's test suites, as far as a workload needs it.

`script` parses a test file, `interpreter` runs it. Results are not compared with the suite's own: a statement that the
server refuses is counted, and the test continues. What needs a program of the suite (`exec`, `perl`, a restart) ends
the test, and what ran until then counts.
"""
