"""The merge without Spark and Java: DuckDB folds, PyIceberg and cdcflow commit; small ranges, in this process.

    dialect     translates Spark's SQL to DuckDB's
    session     DuckDB over the log's Parquet files; plain_columns takes what needs no query
    tables      tables of files: rows are marked, or whole files replaced
    key_filter  finds the rows with one of a range's keys; scan reads them
    file_rewrites chooses the files to rewrite
    recently_used what a process keeps of files that it has read or written
    iceberg     tables of Iceberg, through PyIceberg; position_deletes writes their position deletes
    delta       tables of Delta Lake; deltalog reads and writes their log, vectors has deletion vectors
    engine      the engine: which tables it merges, and which only Spark can
    live        tables with the log's tail folded over them on read
    current     one table of a log at a past offset
    comparison  the same tables, for a comparison with their source
    attached_tables tables built from rows that were loaded another way; bases reads these

Programs use `cdcflow.local`.
"""
