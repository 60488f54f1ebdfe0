"""The public conformance kit: real servers for tests, and suites every source and sink must pass."""
