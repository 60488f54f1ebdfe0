"""The public conformance kit: suites that every source and every sink must pass. It starts no server."""
