"""What Java says of an error, as far as a person wants to read it."""


def first_line(error: Exception) -> str:
    """The first line of what Java says: the rest is a trace. Neither has a key in it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line.removeprefix(": ") for line in lines if "Exception" in line), lines[0] if lines else "no reason")
    return said[:300]


__all__ = ["first_line"]
