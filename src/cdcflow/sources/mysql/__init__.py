"""The MySQL and MariaDB source: the binary log, chunks, and the values of both as Arrow columns."""
