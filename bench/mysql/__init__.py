"""MySQL and MariaDB: the same questions as for PostgreSQL, each server with its own limits and peers."""
