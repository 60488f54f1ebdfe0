"""Captures in the test's own process: small sources, commands, a status that is watched."""
