"""Sinks write the change log: into files, into Kafka, into object stores, or into memory; nothing else."""
