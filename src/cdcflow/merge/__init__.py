"""What a MERGE means, without Spark: the fold that is the oracle, the reduction, the statement, schema evolution."""
