"""A settings file to begin with, for each kind of database; comments explain what it may contain."""

from __future__ import annotations

from enum import StrEnum


class DatabaseKind(StrEnum):
    """The databases that changes are captured from, as `source.kind` names them."""

    postgres = "postgres"
    mysql = "mysql"
    mariadb = "mariadb"


_HEAD = """\
# cdcflow settings. Every name is explained in docs/settings.md; `cdcflow doctor` shows what the database still needs.
# Relative paths begin at the folder of this file. Keep secrets out of it: ${env:NAME} or ${file:path}.

"""

_POSTGRES = """\
source:
  kind: postgres
  url: postgresql://cdcflow@localhost:5432/mydatabase      # never with a password in it
  # password: ${env:CDCFLOW_PASSWORD}                      # or ${file:/run/secrets/cdcflow}
  tables:                                                  # patterns of schema.table; each in quotes
    - "public.*"
    # - "!public.audit_*"                                  # ! excludes tables
  # slot: cdcflow_mydatabase                               # these two are named after the log if not set
  # publication: cdcflow_mydatabase
  # special_values: stop                                   # stop | null | text | clamp: infinity, NaN in numeric(p,s)
  # unconstrained_numeric: text                            # numeric without precision: text | decimal(38,10)
  # columns: {public.orders.due: clamp}                    # the same for one column
"""

_MYSQL = """\
source:
  kind: {kind}
  url: {url:<52}# never with a password or a database in it
  # password: ${{env:CDCFLOW_PASSWORD}}                      # or ${{file:/run/secrets/cdcflow}}
  tables:                                                  # patterns of database.table; each in quotes
    - "mydatabase.*"
    # - "!mydatabase.audit_*"                              # ! excludes tables
  # tls: {{mode: off}}                                       # the link is verified; off: where others cannot read it
{key}  # fence: marks                                           # read-only: a backfill writes nothing to the server
  # marks_table: cdcflow.cdcflow_marks                     # where marks are written; created at the first start
  # server_id: 4001                                        # cdcflow's number as a replica; not set: from the log
  # tables_without_key: refuse                             # whole: read each in one piece
  # zero_dates: stop                                       # stop | null | text: 0000-00-00 and the like
  # bad_text: stop                                         # stop | replace: bytes that the character set does not have
  # columns: {{mydatabase.orders.due: "null"}}               # the same for one column
"""

_PUBLIC_KEY = """\
  # server_public_key: server-public-key.pem               # without TLS MySQL needs passwords encrypted with its key
"""

_REST = """\
  # backfill:
  #   rows_per_second_max: 50000                           # limits the load on the source; no limit if not set
  #   chunk_time_target_ms: 200                            # how long reading a chunk takes
  #   ranges_at_once: 2                                    # connections that read a large chunk together

log:                                                       # in a folder; docs/kafka.md: in Kafka instead
  path: ./cdcflow-log                                      # the change log; also keeps the position and the progress
  # seal: {bytes_max: 32MiB, age_max: 10s}                 # when a piece of it becomes Parquet that a merge can read
  # objects: {url: "s3://bucket/prefix"}                   # finished pieces go to a store (docs/object-store.md)

# tables:                                                  # columns that must not leave the source: docs/columns.md
#   "*.users": {columns: {ssn: drop, email: {hash: "${env:EMAIL_KEY}"}, name: mask}}

merge:
  format: delta
  warehouse: ./warehouse
  # tables: {readable: wide}                               # new tables: pandas and Polars open them; changes cost more
  # every: 10s                                             # `cdcflow run` merges this often, in a separate process

# service:
#   listen: 127.0.0.1:8079                                 # page, API, metrics: pip install 'cdcflow[service]'
#   tokens: [{name: ops, role: operate, token: "${env:CDCFLOW_HTTP_TOKEN}"}]   # without one the page is read-only
"""


def template(kind: DatabaseKind) -> str:
    """Settings with comments for this kind of database; what is commented out is valid too."""
    match kind:
        case DatabaseKind.postgres:
            source = _POSTGRES
        case DatabaseKind.mysql:
            source = _MYSQL.format(kind=kind, url=f"{kind}://cdcflow@localhost:3306/", key=_PUBLIC_KEY)
        case DatabaseKind.mariadb:
            source = _MYSQL.format(kind=kind, url=f"{kind}://cdcflow@localhost:3306/", key="")
    return _HEAD + source + _REST
