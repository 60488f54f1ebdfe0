"""What a capture requires of a source and of a log, as Protocols."""
