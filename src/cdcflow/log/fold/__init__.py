"""The meaning of a log: what rows its changes result in, and whether a table has every row. Pure."""
