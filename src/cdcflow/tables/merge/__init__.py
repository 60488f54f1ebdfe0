"""The meaning of a merge as SQL texts: the reduction, the statement, schema evolution, modes. Pure."""
