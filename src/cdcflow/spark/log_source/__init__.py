"""The change log as a Spark data source, for batches and streams, and as plans over Spark's own Parquet reader."""
