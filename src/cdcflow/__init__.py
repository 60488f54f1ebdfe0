"""cdcflow: change data capture from PostgreSQL, MySQL and MariaDB into lakehouse tables, in columns."""

__version__ = "0.1.0"
