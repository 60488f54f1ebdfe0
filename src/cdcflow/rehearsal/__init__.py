"""Tests of a pipeline: these changes at the source, these rows in the tables; without servers."""
