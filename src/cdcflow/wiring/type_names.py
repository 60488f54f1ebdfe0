"""Resolve the names that users of the configured source write for types of columns, without its server."""

from __future__ import annotations

from cdcflow.config import Config, MySQL
from cdcflow.config.sources import Postgres
from cdcflow.model.table import TableId
from cdcflow.model.types import ColumnType


def column_type(config: Config, table: TableId, column: str, text: str) -> ColumnType:
    """Return the type that a column has in the log if its type at the configured source has this name. For a source of
    a plug-in the names are PostgreSQL's.

    Raises:
        ConfigurationError: the settings' policy for the column does not fit its type.
        ValueError: the source does not know the name.
    """
    settings = config.source
    if isinstance(settings, MySQL):
        from cdcflow.sources.mysql.types.columns import Policy as MySQLPolicy
        from cdcflow.sources.mysql.types.names import column_type as in_mysql

        of_mysql = MySQLPolicy(settings.zero_dates, settings.bad_text, dict(settings.columns))
        return in_mysql(table, column, text, of_mysql, is_mariadb=settings.kind == "mariadb")
    from cdcflow.sources.postgres.types.describe import Policy
    from cdcflow.sources.postgres.types.names import column_type as in_postgres

    policy = Policy.of(settings) if isinstance(settings, Postgres) else Policy()
    return in_postgres(table, column, text, policy)
