from collections.abc import Sequence

from cdcflow.model.change import Int64s

class Drain:
    def __init__(self, connection: int, functions: tuple[int, int, int], kind: str) -> None: ...
    def take(
        self, bytes_max: int, messages_max: int, linger_s: float = 0
    ) -> tuple[bytes, Int64s, Sequence[tuple[int, bytes]], int]: ...
    def take_all(self, descriptor: int, bytes_max: int) -> tuple[bytes, Int64s, int]: ...
