"""The whole of a settings file, with the parts that are small."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidatorFunctionWrapHandler, field_validator, model_validator

from cdcflow.config.base import HOST_AND_PORT, URL, Settings
from cdcflow.config.logs import FileLog, KafkaLog
from cdcflow.config.publishing import Publish
from cdcflow.config.sources import MySQL, Postgres
from cdcflow.config.units import Seconds


class Merge(Settings):
    """How the log becomes tables. `spark` are settings of Spark's own, such as `spark.master`; they win over ours.

    `engine`: "local" merges in this process, without Java, and "auto" has it do what is small.
    """

    engine: Literal["auto", "spark", "local"] = "auto"
    format: Literal["delta", "iceberg"] = "delta"
    warehouse: Path = Path("warehouse")
    every: Seconds | None = None
    spark: dict[str, str] = Field(default_factory=dict)

    @field_validator("warehouse", mode="before")
    @classmethod
    def _local(cls, warehouse: object) -> object:
        # A path would lose one of the slashes and be a folder of that name.
        if isinstance(warehouse, str) and URL.match(warehouse):
            raise ValueError(
                "must be a local folder: cdcflow merges into no other place yet, so copy or mount it there"
            )
        return warehouse

    @model_validator(mode="after")
    def _local_is_iceberg(self) -> Self:
        if self.engine == "local" and self.format != "iceberg":
            raise ValueError("engine: local writes Iceberg tables only; set merge.format to iceberg, or engine to auto")
        return self


class Service(Settings):
    """HTTP health, metrics and status. `hosts` are names it may be asked by, besides `listen`'s and addresses."""

    listen: str | None = None
    hosts: tuple[str, ...] = ()

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, listen: str | None) -> str | None:
        if listen is not None and (HOST_AND_PORT.fullmatch(listen) is None or int(listen.rpartition(":")[2]) > 65535):
            raise ValueError("must be host:port, such as 127.0.0.1:8079")
        return listen


class Config(Settings):
    """The whole of `cdcflow.yaml`."""

    source: Annotated[Postgres | MySQL, Field(discriminator="kind")]
    log: FileLog | KafkaLog
    merge: Merge = Merge()
    publish: Publish | None = None
    service: Service = Service()

    @model_validator(mode="after")
    def _kafka_is_sealed_by_spark(self) -> Self:
        if self.merge.engine == "local" and isinstance(self.log, KafkaLog):
            raise ValueError("merge.engine: local reads logs in files; set it to auto for a log in Kafka")
        return self

    @field_validator("log", mode="wrap")
    @classmethod
    def _in_one_place(cls, log: object, checked: ValidatorFunctionWrapHandler) -> object:
        if not isinstance(log, dict):
            return checked(log)
        if "kafka" in log and len(log) > 1:
            raise ValueError("is in one place: either path (with what belongs to it) or kafka, not both")
        return (KafkaLog if "kafka" in log else FileLog).model_validate(log)


__all__ = ["Config", "Merge", "Service"]
