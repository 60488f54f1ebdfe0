"""Decides which parts of rows leave a source: row rules, column policies and new names, applied at its ports.

Every path by which rows leave a source passes through its ports, which this package implements around it:

    decoder ─▶ Stream.poll ────▶ PrivateStream ─────▶ capture ─▶ log
            └▶ Spool.write ────▶ PrivateSpool ──────▶ spool on disk
    chunks ──▶ read_chunk ─────▶ PrivateChunks ─────▶ capture, shadow check, verify, repair
            └▶ cursors, plans ─▶   encrypted ───────▶ checkpoints (if a policy is for a key's column)
    parts ───▶ read_part ──────▶ PrivatePartReader ─▶ row files of other processes

Nothing else interprets these settings: readers of the log see tables with other rows, columns, types and values.
"""
