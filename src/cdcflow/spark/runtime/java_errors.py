"""The readable part of a Java error."""


def first_line(error: Exception) -> str:
    """Return the first line of a Java error: the rest is a stack. Neither contains a key."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line.removeprefix(": ") for line in lines if "Exception" in line), lines[0] if lines else "no reason")
    return said[:300]
