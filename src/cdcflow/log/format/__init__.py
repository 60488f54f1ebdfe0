"""The bytes of the change log: journal frames, segments, manifests, and how much of a journal counts. Pure."""
