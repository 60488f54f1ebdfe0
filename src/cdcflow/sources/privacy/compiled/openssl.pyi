from collections.abc import Sequence

import pyarrow as pa

from cdcflow.model.change import Int64s

HAS_GCM_SIV: bool

def recent_values(values: pa.Array) -> int: ...

class Hmac:
    def __init__(self, key: bytes, prefix: str) -> None: ...
    def digests(self, values: pa.Array) -> pa.Array | None: ...

def encrypt_values(
    values: pa.Array,
    keys: Sequence[bytes | None],
    prefixes: Sequence[str],
    nonce: bytes,
    owners: Int64s | None = None,
) -> pa.Array | None: ...
def in_base64(
    contents: Sequence[bytes | None], prefixes: Sequence[str], owners: Int64s | None = None
) -> pa.Array | None: ...
