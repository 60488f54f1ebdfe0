"""Read, query and maintain the change log. Writing it is up to `cdcflow.sinks`."""
