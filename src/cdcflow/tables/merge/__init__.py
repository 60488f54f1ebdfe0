"""What a MERGE means, as SQL texts: the reduction, the statement, schema evolution, modes. Pure."""
