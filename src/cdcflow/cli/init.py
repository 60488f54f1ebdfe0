"""`cdcflow init`: a settings file to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cdcflow.errors import ConfigurationError

TEMPLATE = """\
# cdcflow settings. Every name is explained in docs/settings.md; `cdcflow doctor` says what the database still needs.
# Relative paths begin at the folder of this file. Secrets stand elsewhere: ${env:NAME} or ${file:path}.

source:
  kind: postgres
  url: postgresql://cdcflow@localhost:5432/mydatabase      # never with a password in it
  # password: ${env:CDCFLOW_PASSWORD}                      # or ${file:/run/secrets/cdcflow}
  tables: [public.*]                                       # patterns; "!public.audit_*" leaves tables out
  # slot: cdcflow_mydatabase                               # these two are named after the log when left out
  # publication: cdcflow_mydatabase
  # special_values: stop                                   # stop | null | text | clamp: infinity, NaN in numeric(p,s)
  # unconstrained_numeric: text                            # numeric without precision: text | decimal(38,10)
  # columns: {public.orders.due: clamp}                    # the same for one column
  # backfill:
  #   rows_per_second_max: 50000                           # leave the source some air; no limit when left out
  #   chunk_time_target_ms: 200
  #   ranges_at_once: 2

log:                                                       # in a folder; docs/kafka.md: in Kafka instead
  path: ./cdcflow-log                                      # the change log; also keeps the position and the progress
  # seal: {bytes_max: 32MiB, age_max: 10s}                 # when a piece of it becomes Parquet that a merge can read
  # objects: {url: "s3://bucket/prefix"}                   # finished pieces go to a store (docs/object-store.md)

merge:
  format: delta
  warehouse: ./warehouse
  # every: 30s                                             # for `cdcflow merge` without --every

# service:
#   listen: 127.0.0.1:8079                                 # /health, /metrics, /status
"""


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("cdcflow.yaml"),
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Print a systemd unit for `cdcflow run` instead (docs/systemd.md).")
    ] = False,
) -> None:
    """Write a commented settings file. An existing one is never overwritten."""
    if systemd:
        from cdcflow.cli.systemd import unit

        typer.echo(unit(), nl=False)
        return
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise ConfigurationError(f"{path} is there already", remedy="edit it, or name another file") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    typer.echo(f"wrote {path}; set source.url in it, then run `cdcflow doctor`")
