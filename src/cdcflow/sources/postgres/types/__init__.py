"""PostgreSQL's types: a module for each family, with everything about its types.

Each type is listed once, in its family's `TYPES`: its Arrow type, the decoder of the server's text, that of its binary
format, and for each the name of the equivalent compiled kernel, whose source is the `.pxi` of the family's name; and
the text of its values in a row's digest (`row_texts`). `describe` combines the families. `docs/postgres_types.md`
documents the types for users. How a type is published is defined where the log is read, by the server's name of the
type (`publish/postgres_columns.py`).

A new type is an entry in its family's `TYPES`. A new kernel is a function in the family's `.pxi`, a code in
`compiled/kernels.pxi`, and a line in `converted` there.
"""

from cdcflow.sources.postgres.types.describe import (
    AttributeInfo,
    Codec,
    DescribedTable,
    Policy,
    decode,
    describe_table,
    standing_in,
)

__all__ = ["AttributeInfo", "Codec", "DescribedTable", "Policy", "decode", "describe_table", "standing_in"]
