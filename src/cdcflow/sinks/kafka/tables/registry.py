"""Schemas into a schema registry, through confluent-kafka's own client."""

from __future__ import annotations

from cdcflow.config import Registry, secret
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.sinks.kafka.tables.formats import Register

_REFUSED = (401, 403, 409, 422)


def registrar(settings: Registry) -> Register:
    """A function that registers a schema under a subject, and gives its number. Asks once a schema.

    Raises:
        ConfigurationError: the client's parts are not installed.
    """
    try:
        from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
        from confluent_kafka.schema_registry.error import SchemaRegistryError
    except ImportError as error:
        raise ConfigurationError(
            f"publishing with a schema registry needs a package that is not installed ({error.name})",
            remedy="pip install 'cdcflow[registry]'",
        ) from None

    config = {"url": settings.url}
    password = secret(settings.password)
    if settings.username is not None:
        config["basic.auth.user.info"] = f"{settings.username}:{password or ''}"
    client = SchemaRegistryClient(config)

    def register(subject: str, kind: str, text: str) -> int:
        attempted = f"registering the schema of {subject}"
        try:
            return int(client.register_schema(subject, Schema(text, kind)))
        except SchemaRegistryError as error:
            if error.http_status_code not in _REFUSED:
                raise SinkUnavailable(f"{attempted}: the registry answered {error.http_status_code}") from None
            raise ConfigurationError(
                f"{attempted}: the registry refused it ({error.http_status_code}, {error.error_code})",
                remedy="see the subject's compatibility at the registry, and publish.kafka.registry's username",
            ) from None
        except Exception as error:  # noqa: BLE001  the client's transport raises what it likes
            raise SinkUnavailable(f"{attempted}: the registry did not answer ({type(error).__name__})") from None

    return register
