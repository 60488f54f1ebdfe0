"""Settings: the messages for a user who made a mistake in cdcflow.yaml."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pytest
from tests.support.settings_files import complaint, write_settings
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.config import Config, FileLog, KafkaLog, MySQL, Postgres, load, seconds, secret
from cdcflow.errors import ConfigurationError

WHOLE = """\
source:
  kind: postgres
  url: postgresql://cdc@db.internal:5432/shop
  password: ${env:SHOP_PASSWORD}
  tables: [public.*, "!public.audit_*", 'sales."Odd.Name"']
  backfill: {chunk_time_target_ms: 100, rows_per_second_max: null}
log:
  path: shop-log
  seal: {bytes_max: 1.5MiB, age_max: 250ms}
merge:
  warehouse: /data/warehouse
  every: 2m
service: {listen: "[::1]:8079"}
"""

CANARY = "c4n4ry-s3cret"


def test_whole_file_is_read_with_units_and_relative_paths(tmp_path: Path) -> None:
    """A relative path means the same wherever the command is started from."""
    config = load(write_settings(tmp_path, WHOLE))
    assert isinstance(config.log, FileLog)
    assert config.log.path == tmp_path / "shop-log"
    assert config.log.seal.bytes_max == 3 << 19
    assert config.log.seal.age_max == 0.25
    assert config.merge.warehouse == Path("/data/warehouse")
    assert config.merge.every == 120
    assert config.database.backfill.rows_per_second_max is None


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        ("tabels:", "tables:", "cdcflow.yaml:5:3: unknown setting source.tabels; did you mean source.tables?"),
        (
            "tables_without_key: whole\n  tables:",
            "tables:",
            "It is a setting of source.kind mysql and mariadb only",
        ),
        ("mrge:", "merge:", "cdcflow.yaml:10:1: unknown setting mrge; did you mean merge?"),
        ("chunk_time: 100", "chunk_time_target_ms: 100", "6:14: unknown setting source.backfill.chunk_time; did you"),
        ("chunk_time_target_ms: fast", "chunk_time_target_ms: 100", "source.backfill.chunk_time_target_ms must be"),
        ("bytes_max: lots", "bytes_max: 1.5MiB", "9:10: log.seal.bytes_max must be a number with a unit"),
        ("age_max: -1s", "age_max: 250ms", "9:29: log.seal.age_max must be greater than 0"),
        ("audit_*, 'sales", '"!public.audit_*", \'sales', 'source.tables "audit_*" is not a table pattern'),
        ("kind: oracle", "kind: postgres", "2:3: source.kind must be 'postgres', 'mysql' or 'mariadb'"),
        ("k: postgres", "kind: postgres", "1:1: source.kind is missing"),
        ("url: mysql://", "url: postgresql://", "3:3: source.url must look like postgresql://"),
        ("warehouse: s3a:/b/w", "warehouse: /data/warehouse", "merge.warehouse must be a folder or a URL"),
        ("warehouse: s3a://b/w\n  format: iceberg", "warehouse: /data/warehouse", "set merge.catalog, such as"),
        ("catalog: {uri: x}\n  format: iceberg", "warehouse: /data/warehouse", "merge.catalog must have a type"),
        ("catalog: {type: rest}", "warehouse: /data/warehouse", "cannot hold Delta tables: set merge.catalog to"),
        ("catalog: {type: hive, url: x}", "warehouse: /data/warehouse", "has a catalog with url, and a Hive metastore"),
        ("catalog: {type: hive, uri: h:9083}", "warehouse: /data/warehouse", "uri is not like thrift://host:9083"),
        ("catalog: {type: hive, prefix: A-}", "warehouse: /data/warehouse", "prefix has other characters than a-z"),
        ("objects: {region: eu}", "warehouse: /data/warehouse", "has objects, which only a warehouse in a store"),
        ('listen: "8079"', 'listen: "[::1]:8079"', "13:11: service.listen must be host:port"),
        ('listen: "0.0.0.0:8079"', 'listen: "[::1]:8079"', "13:1: service listens on 0.0.0.0:8079, which"),
        ("  every: 2m\n  every: 3m", "  every: 2m", "13:3: merge.every is set twice"),
        ("  listen: x\n  every: 2m", "  every: 2m", "12:3: unknown setting merge.listen; it belongs at service.listen"),
        ("[public.*, !public.audit_*,", '[public.*, "!public.audit_*",', "a value that begins with ! needs quotes"),
        ("[*, ", "[public.*, ", "5:13: a value that begins with * needs quotes"),
        ("\turl:", "  url:", "3:1: not YAML"),
        ("", "  url: postgresql://cdc@db.internal:5432/shop\n", "1:1: source.url is missing"),
    ],
)  # fmt: skip
def test_mistake_is_answered_with_its_place_and_what_was_meant(
    tmp_path: Path, wrong: str, right: str, expected: str
) -> None:
    """One clear line instead of a validation dump: the place in the file, and the nearest right name."""
    assert right in WHOLE
    assert expected in complaint(tmp_path, WHOLE.replace(right, wrong, 1))


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("public.orders", "5:3: source.tables must be a list: [public.orders]"),
        ("public.orders, shop.*", "5:3: source.tables must be a list: [public.orders, shop.*]"),
        ("'*.orders'", '5:3: source.tables must be a list: ["*.orders"]'),
        ("""'public."Odd"'""", """5:3: source.tables must be a list: ['public."Odd"']"""),
        ("5", "5:3: source.tables must be a list: [schema.table]"),
        (CANARY, "5:3: source.tables must be a list: [schema.table]"),
    ],
)  # fmt: skip
def test_tables_that_are_no_list_are_shown_as_one(tmp_path: Path, wrong: str, expected: str) -> None:
    """The printed lines can be copied into the file unchanged; a value that is not a pattern is not repeated (S03)."""
    right = """[public.*, "!public.audit_*", 'sales."Odd.Name"']"""
    assert right in WHOLE
    assert complaint(tmp_path, WHOLE.replace(right, wrong)) == f"cdcflow.yaml:{expected}"
    if wrong.strip("'\"")[-1] == "*" or "." in wrong:
        load(write_settings(tmp_path, WHOLE.replace(right, expected.partition("list: ")[2])))


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ("[public.*, !public.audit_*]", "5:22"),
        ("[public.*, !public.audit]", "5:22"),
        ("[public.*, ! public.audit]", "5:22"),
        ('[public.*, !public."A b"]', "5:22"),
        ("[public.*, !a!b.c]", "5:22"),
        ("!public.audit", "5:11"),
        ("\n    - public.*\n    - !public.audit_*\n    - public.x", "7:7"),
        ("\n    - public.*\n    - !public.[x]", "7:7"),
    ],
)
def test_value_that_yaml_parses_as_a_tag_is_named_at_its_line(tmp_path: Path, wrong: str, place: str) -> None:
    """YAML complains about the line after it, or drops the ! and captures the very table that was to be excluded."""
    right = """[public.*, "!public.audit_*", 'sales."Odd.Name"']"""
    assert complaint(tmp_path, WHOLE.replace(right, wrong)) == (
        f'cdcflow.yaml:{place}: a value that begins with ! needs quotes, such as "!public.audit_*"'
    )


@pytest.mark.parametrize("wrong", ["8079", "listen", "127.0.0.1", "12:34", '"h:70000"'])
def test_error_about_listen_names_the_expected_form(tmp_path: Path, wrong: str) -> None:
    """A port alone is what most users write first, and 12:34 is a number in YAML."""
    assert complaint(tmp_path, WHOLE.replace('"[::1]:8079"', wrong)) == (
        "cdcflow.yaml:13:11: service.listen must be host:port, such as 127.0.0.1:8079"
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://cdc@db:port/shop", "source.url has a port that is not a number from 1 to 65535"),
        ("postgresql://cdc@db:70000/shop", "source.url has a port that is not a number from 1 to 65535"),
        ("postgresql://cdc@db:5432", "source.url names no database; write postgresql://user@host:5432/database"),
        ("postgresql://cdc@db/?sslmode=require", "source.url names no database; write postgresql://user@host:5432/dat"),
        ("postgresql://cdc@fe80::1/shop", "source.url has a host that cannot be read; write host:port, an IPv6 addr"),
        ("postgresql://cdc@db/sh%op", "source.url has a % that is not followed by two hexadecimal digits; write "
        "%25 for th"),
        ("postgresql://cdc@db/shop?sslmod=require", "source.url has the parameter sslmod; did you mean sslmode?"),
        ("postgresql+psycopg://cdc@db/shop", "source.url must look like postgresql://user@host:5432/database"),
        ("cdc@db/shop", "source.url must look like postgresql://user@host:5432/database"),
    ],
)  # fmt: skip
def test_invalid_url_is_reported_with_its_place(tmp_path: Path, url: str, expected: str) -> None:
    """It is a mistake in the file like any other, and needs no connection to be found."""
    said = complaint(tmp_path, WHOLE.replace("postgresql://cdc@db.internal:5432/shop", url))
    assert said.startswith(f"cdcflow.yaml:3:3: {expected}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///shop?host=/run/postgresql",
        "postgresql://cdc@%2Frun%2Fpostgresql/shop",
        "postgres://cdc@[::1]:5432,db2:5433/shop?sslmode=verify-full&target_session_attrs=read-write",
        "postgresql://cdc@db/?dbname=shop&a_newer_libpq_has_this=1",
    ],
)
def test_url_that_may_be_one_is_left_to_the_library(tmp_path: Path, url: str) -> None:
    """Sockets, several hosts and parameters of a newer library are no mistakes."""
    database = load(write_settings(tmp_path, WHOLE.replace("postgresql://cdc@db.internal:5432/shop", url))).database
    assert isinstance(database, Postgres)
    assert database.url == url


MYSQL = """\
source:
  kind: mariadb
  url: mysql://cdc@db.internal:3306/
  password: ${file:secret}
  tables: [shop.*]
  tls: {mode: verify-ca, ca: ca.pem}
  server_public_key: key.pem
log: {path: shop-log}
"""


def test_files_of_a_mysql_source_are_found_next_to_the_settings(tmp_path: Path) -> None:
    """A relative path means the same wherever the command is started from."""
    source = load(write_settings(tmp_path, MYSQL)).source
    assert isinstance(source, MySQL)
    assert source.tls.ca == tmp_path / "ca.pem"
    assert source.server_public_key == tmp_path / "key.pem"
    assert source.password == f"${{file:{tmp_path}/secret}}"


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        ("tabels:", "tables:", "cdcflow.yaml:5:3: unknown setting source.tabels; did you mean source.tables?"),
        ("slot: x", "server_public_key: key.pem", "7:3: unknown setting source.slot; known here: "),
        ("mod: off", "mode: verify-ca", "6:9: unknown setting source.tls.mod; did you mean source.tls.mode?"),
        ("{mode: verify-ca}", "{mode: verify-ca, ca: ca.pem}", "6:3: source.tls needs ca"),
        ("url: postgresql://", "url: mysql://", "3:3: source.url must look like mysql://"),
        (f"cdc:{CANARY}@db", "cdc@db", "3:3: source.url holds a password"),
        (":3306/shop", ":3306/", "3:3: source.url names a database; write mysql://user@host:3306/, and name tables in"),
        (":mysql/", ":3306/", "3:3: source.url has a port that is not a number from 1 to 65535"),
        (":3306/?ssl=1", ":3306/", "3:3: source.url has the parameter ssl, but the only known one is socket; every"),
        ("shop.orders", "[shop.*]", "5:3: source.tables must be a list: [shop.orders]"),
        ("server_id: 0", "server_public_key: key.pem", "7:3: source.server_id must be greater than"),
        ("marks_table: marks", "server_public_key: key.pem", "7:3: source.marks_table must be the name of one table"),
    ],
)  # fmt: skip
def test_mistake_in_a_mysql_source_is_answered_with_its_place(
    tmp_path: Path, wrong: str, right: str, expected: str
) -> None:
    """The names of another kind of source are no help."""
    assert right in MYSQL
    said = complaint(tmp_path, MYSQL.replace(right, wrong, 1))
    assert expected in said
    assert CANARY not in said


KAFKA = """\
source: {kind: postgres, url: postgresql://cdc@db/shop}
log:
  kafka:
    brokers: kafka1:9092,kafka2:9092
    topic: shop-log
    username: cdcflow
    password: ${file:secret}
    message_bytes: 1MB
    options: {security.protocol: SASL_SSL, sasl.mechanism: PLAIN, ssl.ca.location: ca.pem,
              enable.ssl.certificate.verification: true}
"""


def test_log_in_kafka_is_read_with_its_files_next_to_the_settings(tmp_path: Path) -> None:
    """Two topics need two folders for their daemons; certificates and secrets are next to the settings."""
    log = load(write_settings(tmp_path, KAFKA)).log
    assert isinstance(log, KafkaLog)
    assert log.folder == tmp_path / ".cdcflow" / "shop-log"
    assert log.kafka.password == f"${{file:{tmp_path}/secret}}"
    assert log.kafka.options["ssl.ca.location"] == str(tmp_path / "ca.pem")
    assert log.kafka.options["enable.ssl.certificate.verification"] == "true"
    assert log.kafka.message_bytes == 1_000_000
    assert log.history == log.folder / "history"
    stored = KAFKA.replace(
        "message_bytes: 1MB", "history: s3://lake/shop\n    objects: {access_key: '${file:a}', secret_key: '${file:b}'}"
    )
    log = load(write_settings(tmp_path, stored)).log
    assert isinstance(log, KafkaLog)
    assert log.history_url == "s3://lake/shop"
    assert log.history.parent == log.folder / "objects"
    assert log.kafka.objects is not None
    assert log.kafka.objects.secret_key == f"${{file:{tmp_path}/b}}"


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        ("path: x\n  kafka:", "kafka:", "2:1: log is in one place: either path (with what belongs to it) or kafka"),
        ("broker: k:9092", "brokers: kafka1:9092,kafka2:9092", "log.kafka.broker; did you mean log.kafka.brokers?"),
        ("brokers: kafka1", "brokers: kafka1:9092,kafka2:9092", "4:5: log.kafka.brokers must be host:port"),
        ("topic: a/b", "topic: shop-log", "5:5: log.kafka.topic must be a topic's name"),
        (f"password: {CANARY}", "password: ${file:secret}", "7:5: log.kafka.password must be a reference"),
        ("acks: all", "sasl.mechanism: PLAIN", "log.kafka.options has acks, which cdcflow sets itself"),
        (f"ssl.key.password: {CANARY}", "sasl.mechanism: PLAIN", "has ssl.key.password: it must be a reference"),
        ("client.id: x", "sasl.mechanism: PLAIN", "options has no sasl.mechanism"),
        ("message_bytes: 10", "message_bytes: 1MB", "8:5: log.kafka.message_bytes must be greater than"),
        ("history: gs://b/x", "message_bytes: 1MB", "log.kafka.history must be a folder, or look like s3://bucket/pre"),
        ("objects: {region: x}", "message_bytes: 1MB", "has objects, which only a history in a store (s3://bucket"),
        ("objects: {secret_key: " + CANARY + "}", "message_bytes: 1MB", "secret_key must be a reference"),
    ],
)  # fmt: skip
def test_mistake_in_a_log_in_kafka_is_answered_with_its_place(
    tmp_path: Path, wrong: str, right: str, expected: str
) -> None:
    """An option that undoes a promise of the log is no option."""
    assert right in KAFKA
    said = complaint(tmp_path, KAFKA.replace(right, wrong, 1))
    assert expected in said
    assert CANARY not in said


def test_unquoted_off_is_read_as_the_mode(tmp_path: Path) -> None:
    """YAML reads `off` as false, which users who write it do not expect."""
    source = load(write_settings(tmp_path, MYSQL.replace("{mode: verify-ca, ca: ca.pem}", "{mode: off}"))).source
    assert isinstance(source, MySQL)
    assert source.tls.mode == "off"


def test_every_mistake_gets_a_separate_line(tmp_path: Path) -> None:
    """Fixing a file one error per run is slow."""
    text = WHOLE.replace("tables:", "tabels:").replace("merge:", "mrge:")
    lines = complaint(tmp_path, text).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("cdcflow.yaml:") for line in lines)


def test_error_about_a_missing_file_explains_how_to_create_one(tmp_path: Path) -> None:
    """The first thing that a new user meets."""
    with pytest.raises(ConfigurationError, match="cdcflow init"):
        load(tmp_path / "cdcflow.yaml")


@pytest.mark.parametrize("text", ["", "just words", "- a\n- b\n"])
def test_file_without_settings_is_named_as_such(tmp_path: Path, text: str) -> None:
    """An empty file is a common slip of a deployment; it must not look like a set of defaults."""
    assert "holds no settings" in complaint(tmp_path, text)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (f"password: {CANARY}", "password: ${env:SHOP_PASSWORD}"),
        ("password: 1234567", "password: ${env:SHOP_PASSWORD}"),
        (f"password: *{CANARY}", "password: ${env:SHOP_PASSWORD}"),
        (f"password: !{CANARY}", "password: ${env:SHOP_PASSWORD}"),
        (f"password: [{CANARY}]", "password: ${env:SHOP_PASSWORD}"),
        (f"password: ${{env:A}}{CANARY}", "password: ${env:SHOP_PASSWORD}"),
        (f'password: "{CANARY}', "password: ${env:SHOP_PASSWORD}"),
        (f"cdc:{CANARY}@db.internal", "cdc@db.internal"),
        (f"cdc:{CANARY}/x@db.internal", "cdc@db.internal"),
        (f"5432/shop?password={CANARY}", "5432/shop"),
        (f"5432/shop?sslpassword={CANARY}", "5432/shop"),
        (f"url: host=db password={CANARY}", "url: postgresql://cdc@db.internal:5432/shop"),
    ],
)
def test_literal_secret_is_refused_and_never_repeated(tmp_path: Path, wrong: str, right: str) -> None:
    """S03: a password in the settings ends up in backups and tickets, and an error that quotes it in the log too."""
    assert right in WHOLE
    path = write_settings(tmp_path, WHOLE.replace(right, wrong, 1))
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_models_made_in_python_do_not_repeat_a_secret_either() -> None:
    """S03: a program that embeds cdcflow logs a ValidationError unchanged."""
    with pytest.raises(ValueError, match="password") as caught:
        Config.model_validate(
            {"source": {"kind": "postgres", "url": f"postgres://u:{CANARY}@h/d"}, "log": {"path": "x"}}
        )
    assert CANARY not in str(caught.value)
    assert CANARY not in repr(caught.value)


def test_secret_is_read_again_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P65: a rotated password works at the next connection, without a restart."""
    file = tmp_path / "secret"
    file.write_text("one\n")
    file.chmod(0o600)
    reference = f"${{file:{file}}}"
    assert secret(reference) == "one"
    file.write_text("two")
    assert secret(reference) == "two"
    monkeypatch.setenv("SHOP_PASSWORD", "three")
    assert secret("${env:SHOP_PASSWORD}") == "three"
    assert secret(None) is None


def test_relative_secret_file_is_next_to_the_settings(tmp_path: Path) -> None:
    """Like every other path of the file."""
    (tmp_path / "secret").write_text("one")
    (tmp_path / "secret").chmod(0o640)
    config = load(write_settings(tmp_path, WHOLE.replace("${env:SHOP_PASSWORD}", "${file:secret}")))
    assert isinstance(config.database, Postgres)
    assert config.database.password == f"${{file:{tmp_path / 'secret'}}}"


def test_secret_that_everybody_may_read_is_refused(tmp_path: Path) -> None:
    """S12: a secret that any account of the machine can read is not secret."""
    file = tmp_path / "secret"
    file.write_text(CANARY)
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod") as caught:
        secret(f"${{file:{file}}}")
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("reference", ["${env:CDCFLOW_NOT_SET}", "${file:/nowhere/secret}", CANARY])
def test_missing_secret_is_named(reference: str) -> None:
    """The message names the variable or file, and never the text given instead of a reference (S03)."""
    with pytest.raises(ConfigurationError) as caught:
        secret(reference)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "merge", ["catalog: {type: rest, uri: https://c, token: REF}", "objects: {access_key: REF, secret_key: REF}"]
)
def test_daemon_does_not_start_without_a_secret_of_its_merges(tmp_path: Path, merge: str) -> None:
    """Its merge process alone would report it, each time it starts, while `cdcflow plan` refuses the settings."""
    more = "format: iceberg, " if merge.startswith("catalog") else ""
    given = merge.replace("REF", '"${env:CDCFLOW_NOT_SET}"')
    merging = f"merge: {{{more}warehouse: s3a://b/w, every: 2m, {given}}}"
    text = re.sub(r"merge:\n.*\n.*\n", merging + "\n", WHOLE).replace("shop-log", str(tmp_path / "log"))
    result = CliRunner().invoke(app, ["run", "--config", str(write_settings(tmp_path, text))])
    assert result.exit_code
    assert "CDCFLOW_NOT_SET, which is not set" in result.output


@pytest.mark.parametrize("warehouse", ["shop-log", "shop-log/tables", "./x/../shop-log/", "ABOVE/shop-log/warehouse"])
def test_warehouse_in_the_folder_of_the_log_is_refused(
    tmp_path: Path, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merges and the log would each take the other's files for their own."""
    monkeypatch.chdir(tmp_path)
    text = WHOLE.replace("/data/warehouse", warehouse.replace("ABOVE", str(tmp_path)))
    assert "set merge.warehouse to a separate folder" in complaint(tmp_path, text)
    load(write_settings(tmp_path, WHOLE.replace("/data/warehouse", "shop-log-tables")))


@pytest.mark.parametrize("text", ["30", "soon", "", "-5s"])
def test_time_without_a_unit_is_refused(text: str) -> None:
    """`--every 30` could mean seconds or minutes."""
    with pytest.raises(ConfigurationError):
        seconds(text)


def test_settings_that_nest_indefinitely_are_refused(tmp_path: Path) -> None:
    """A YAML alias can point to its own parent; that must not end in a recursion error."""
    assert "nested" in complaint(tmp_path, "source: &a {b: *a}\n")


def test_what_other_machines_reach_needs_a_token(tmp_path: Path) -> None:
    """S07: row values and operations must not be one setting away from public access; the message is the corrected
    setting."""
    wrong = 'listen: "0.0.0.0:8079"'
    text = WHOLE.replace('listen: "[::1]:8079"', wrong)
    said = complaint(tmp_path, text)
    remedy = said.partition("set service.")[2]
    mended = text.replace(wrong, f"{wrong}, {remedy}")
    service = load(write_settings(tmp_path, mended)).service
    assert [(t.name, t.role, t.token) for t in service.tokens] == [("ops", "operate", "${env:CDCFLOW_HTTP_TOKEN}")]
    again = text.replace(wrong, 'listen: "localhost:8079"')
    assert load(write_settings(tmp_path, again)).service.tokens == ()


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("[{name: a, token: s3cr3t}]", "service.tokens[0].token must be a reference"),
        ("[{name: a, token: }]", "service.tokens[0].token must be a reference"),
        (
            "[{name: a, role: admin, token: '${env:A}'}]",
            "service.tokens[0].role must be 'read', 'consume' or 'operate'",
        ),
        ("[{name: a, token: '${env:A}'}, {name: a, token: '${env:B}'}]", "two tokens with the same name"),
    ],
)
def test_tokens_are_references_with_a_name_and_a_role(tmp_path: Path, tokens: str, said: str) -> None:
    """S03: a token in the file would be copied with it, and the message must not repeat it."""
    text = WHOLE.replace('listen: "[::1]:8079"', f'listen: "[::1]:8079", tokens: {tokens}')
    found = complaint(tmp_path, text)
    assert said in found
    assert "s3cr3t" not in found


def test_token_in_a_file_is_found_next_to_the_settings(tmp_path: Path) -> None:
    """A relative path means the same wherever the command is started from."""
    text = WHOLE.replace('listen: "[::1]:8079"', "tokens: [{name: a, token: '${file:token}'}]")
    assert load(write_settings(tmp_path, text)).service.tokens[0].token == f"${{file:{tmp_path}/token}}"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("every: .inf", "merge.every must be at most 36500d"),
        ("every: 1e300s", "merge.every must be at most 36500d"),
        ("every: true", "merge.every must be a number with a unit, such as 10s"),
        ("memory_max: yes", "merge.memory_max must be a number with a unit, such as 64MiB"),
        ("memory_max: .inf", "merge.memory_max must be a finite number"),
    ],
)
def test_amount_that_is_no_amount_is_refused(tmp_path: Path, wrong: str, expected: str) -> None:
    """Infinity reaches another process as nothing at all, and `yes` would be one second or one byte."""
    file = tmp_path / "cdcflow.yaml"
    source = "source: {kind: postgres, url: postgresql://reader@127.0.0.1:1/none}"
    file.write_text(f"{source}\nlog: {{path: log}}\nmerge: {{{wrong}}}\n")
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        load(file)
