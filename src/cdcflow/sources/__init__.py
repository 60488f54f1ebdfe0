"""Sources: one package per kind of database. They depend neither on the sinks nor on each other."""
