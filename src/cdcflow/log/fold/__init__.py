"""The meaning of a log: the rows that its changes result in, and whether a table has every row. Pure."""
