from cdcflow.model.change import Int64s
from cdcflow.sources.buffers import Bytes

def split(data: bytes, begin: int, size: int, checksum: bool) -> tuple[Int64s, Int64s, Bytes, int, int]: ...
