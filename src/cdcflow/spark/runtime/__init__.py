"""The runtime of Spark: Java, packages, sessions, object stores, a metastore, and its errors as readable texts."""
