"""Column policies: what of a source's rows leaves the source, before anything of it is stored or kept.

Every path by which rows leave a source passes through its ports, which this room implements around it:

    decoder ─▶ Stream.poll ────▶ PrivateStream ─────▶ capture ─▶ log
            └▶ Spool.write ────▶ PrivateSpool ──────▶ spool on disk
    chunks ──▶ read_chunk ─────▶ PrivateChunks ─────▶ capture, shadow check, verify, repair
            └▶ cursors, plans ─▶   encrypted ───────▶ checkpoints (if a policy is for a key's column)
    parts ───▶ read_part ──────▶ PrivatePartReader ─▶ row files of other processes

Nothing else interprets the policies: readers of the log see tables whose columns have other types and values.
"""
