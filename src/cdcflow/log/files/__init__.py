"""The files of a log: where they are, which of them count, and the Parquet in them."""
