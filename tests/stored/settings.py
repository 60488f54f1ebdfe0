"""Settings files with every setting, none at its default."""

from __future__ import annotations

_MERGE = """\
merge:
  engine: spark
  format: iceberg
  warehouse: s3a://shop/lake
  objects:
    endpoint: https://minio.internal:9000
    region: eu-1
    access_key: ${env:KEY}
    secret_key: ${env:SECRET}
  catalog: {type: rest, uri: "https://catalog.internal", token: "${env:TOKEN}"}
  every: 5m
  spark: {spark.master: "spark://host:7077"}
  tables:
    mode: soft_delete
    history_columns: auto_cdc
    evolve: add_only
    incompatible: new_column
    readable: wide
    each:
      public.orders: {mode: history, history_columns: cdcflow, evolve: freeze, incompatible: stop, readable: fast}
  keep: 7d
  upkeep: {every: 2h, after_merges: 10, budget: 30s, compact: false, cluster: true}
"""

_PUBLISH = """\
publish:
  kafka:
    brokers: kafka:9092
    topic_prefix: shop
    username: cdc
    password: ${env:KAFKA}
    options: {security.protocol: SASL_SSL}
    format: avro
    registry: {url: "https://registry.internal", username: cdc, password: "${env:REGISTRY}"}
    partitions: 3
    replicas: 3
    topic_options: {cleanup.policy: compact}
    group_rows_max: 1000
    tombstones_on_delete: false
    skipped_operations: [r]
    provide_transaction_metadata: true
    decimal_handling_mode: string
    time_precision_mode: connect
    binary_handling_mode: hex
    interval_handling_mode: string
    bigint_unsigned_handling_mode: precise
    unavailable_value_placeholder: gone
"""

_SERVICE = """\
service:
  traces: http://127.0.0.1:4318
  listen: 127.0.0.1:9090
  hosts: [cdc.internal]
  tokens:
    - {name: ops, role: operate, token: "${env:CDCFLOW_HTTP_TOKEN}"}
    - {name: all, role: read, token: "${env:ALL}"}
  metrics_per_table: never
  freshness_every: 45s
  shadow_every: 10s
  notify:
    - {on: [lag, headroom], webhook: "https://hooks.internal/cdc", lag_over: 1m, headroom_under: 0.5}
    - {on: [stopped, backfill_done], command: [/usr/bin/mail, ops]}
"""

_BACKFILL = """\
  backfill:
    chunk_time_target_ms: 300
    chunk_time_live_ms: 60
    chunk_time_busy_ms: 20
    chunk_rows_max: 5000
    rows_per_second_max: 10000
    ranges_at_once: 1
    held_bytes_max: 32MiB
    whole_bytes_max: 2GiB
"""

FILES = {
    "whole-postgres": f"""\
source:
  kind: postgres
  url: postgresql://cdc@db.internal:5433/shop?sslmode=verify-full
  tables: ["public.*", "!public.audit_*"]
  password: ${{env:PGPASSWORD}}
  columns: {{public.orders.due: clamp}}
  heartbeat: 5s
  control_table: public.cdc_commands
  spool_bytes_max: 1MiB
{_BACKFILL}  slot: shop_slot
  publication: shop_publication
  failover: true
  special_values: "null"
  unconstrained_numeric: decimal(38,10)
  streaming: false
  binary: false
  catch_up: never
log:
  path: ./shop-log
  seal: {{bytes_max: 64MiB, age_max: 1m}}
  index: false
  objects:
    url: s3://shop/log
    endpoint: https://minio.internal:9000
    region: eu-1
    access_key: ${{env:KEY}}
    secret_key: ${{env:SECRET}}
    keep_local: 1h
    cache: ./cache
    cache_bytes_max: 2GiB
  retention: {{age: 7d, bytes: 100GiB, state: true, keep_for: [merge, publish], every: 5m}}
{_MERGE}{_PUBLISH}{_SERVICE}""",
    "whole-mysql": f"""\
source:
  kind: mysql
  url: mysql://cdc@db.internal:3306/
  tables: [shop.*]
  password: ${{env:MYSQL}}
  columns: {{shop.orders.due: text}}
  heartbeat: 5s
  control_table: shop.cdc_commands
  spool_bytes_max: 1MiB
{_BACKFILL}  server_id: 4711
  marks_table: shop.marks
  tls: {{mode: verify-ca, ca: ./ca.pem}}
  server_public_key: ./key.pem
  tables_without_key: whole
  zero_dates: "null"
  bad_text: replace
log:
  kafka:
    brokers: kafka:9092
    topic: shop
    username: cdc
    password: ${{env:KAFKA}}
    options: {{security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512}}
    message_bytes: 500kB
    replicas: 3
    work: ./work
    history: s3://shop/history
    objects:
      endpoint: https://minio.internal:9000
      region: eu-1
      access_key: ${{env:KEY}}
      secret_key: ${{env:SECRET}}
""",
    "whole-mariadb": """\
source:
  kind: mariadb
  url: mysql://cdc@localhost/?socket=/run/mysqld.sock
  tables: [shop.orders]
  fence: read-only
  tls: {mode: "off"}
log: {path: log, seal: {age_max: 250ms}}
""",
    "whole-serve": """\
serve:
  listen: 127.0.0.1:8081
  hosts: [push.internal]
  tokens: [{name: shop, role: operate, token: "${env:CDCFLOW_SERVE_TOKEN}"}]
  collections:
    - name: orders
      key: [id]
      json_schema: {type: object, properties: {id: {type: integer}, note: {type: string}}, required: [id]}
  request_bytes_max: 1MiB
  idempotency: {age: 2d, keys: 5000}
log: {path: ./serve-log}
""",
}
"""By the name of the file. What only one kind of source or log has is in that kind's file."""
