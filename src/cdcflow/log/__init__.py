"""The change log as a thing to read, query and maintain; writing it is up to `cdcflow.sinks`."""
