"""The public conformance kit: suites that every source and every sink must pass, and tests of pipelines. No servers."""
