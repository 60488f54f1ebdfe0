"""What running in Spark needs: Java, packages, sessions, object stores, a metastore, and its errors in words."""
