"""Types of MySQL and MariaDB, one module for each family.

A family's module has everything that depends on its types: how the catalog and the table map name them, their Arrow
types, the decoders of row images and of result sets, the expressions of a SELECT, their literals in SQL, and which
compiled kernels decode them. To change a type, change its family; to add one, add its code to `columns.TypeCode` and
the rest to its family; to add a family, add it to `registry.FAMILIES`.

    numbers     TINYINT to BIGINT, FLOAT, DOUBLE, DECIMAL, BIT, YEAR
    temporal    DATE, TIME, DATETIME, TIMESTAMP
    labels      ENUM, SET
    text        CHAR to LONGTEXT, BINARY to LONGBLOB, COMPRESSED ones too; `charsets` has the character sets
    json        MySQL's JSON
    special     geometry, VECTOR; MariaDB's UUID, INET4, INET6

The form published to Kafka is in `cdcflow/publish/mysql_columns.py`, because sinks must not depend on
sources. It is derived from the type's SQL text and its Arrow type. `docs/mysql-types.md` documents the types for users.
"""
