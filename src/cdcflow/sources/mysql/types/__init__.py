"""Types of MySQL and MariaDB, one module for each family.

A family's module has everything that depends on its types: how the catalog and the table map name them, their Arrow
types, the decoders of row images and of result sets, what a SELECT asks for, their literals in SQL, and which compiled
kernels take them. To change a type, change its family; to add one, add its code to `columns.TypeCode` and say the rest
in its family, and add a family to `registry.FAMILIES`.

    numbers     TINYINT to BIGINT, FLOAT, DOUBLE, DECIMAL, BIT, YEAR
    temporal    DATE, TIME, DATETIME, TIMESTAMP
    labels      ENUM, SET
    text        CHAR to LONGTEXT, BINARY to LONGBLOB, COMPRESSED ones too; `charsets` has the character sets
    json        MySQL's JSON
    special     geometry, VECTOR; MariaDB's UUID, INET4, INET6

The form published to Kafka is in `cdcflow/sinks/kafka/tables/mysql_columns.py`, because sinks do not know sources. It
is made from the type's SQL text and its Arrow type. `docs/mysql-types.md` is the table of types for people.
"""
