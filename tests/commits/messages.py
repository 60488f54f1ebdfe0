"""What a commit message must have."""

from __future__ import annotations

import re

SUBJECT_MAX = 100
"""Characters of a subject. Longer ones are cut off by the tools that list commits."""
BODY_WORDS_MIN = 5
TRAILER = re.compile(r"[A-Z][A-Za-z-]+: \S")
SCISSORS = "# ------------------------ >8 ------------------------"
"""Git writes the diff below this line with `commit --verbose`."""


def faults_of(message: str) -> list[str]:
    """What is wrong with a message; empty if nothing is."""
    lines = _written(message)
    if not lines:
        return ["it is empty"]
    subject, *rest = lines
    faults = []
    if len(subject) > SUBJECT_MAX:
        faults.append(f"its subject has {len(subject)} characters; at most {SUBJECT_MAX}")
    if subject.endswith("."):
        faults.append("its subject ends with a full stop")
    if rest and rest[0]:
        faults.append("an empty line is missing after the subject")
    if len(_words_of_body(rest)) < BODY_WORDS_MIN:
        faults.append("its body does not say why")
    return faults


def _written(message: str) -> list[str]:
    """The lines that become the commit: without Git's comments."""
    lines = message.split(SCISSORS)[0].splitlines()
    return "\n".join(line.rstrip() for line in lines if not line.startswith("#")).strip().splitlines()


def _words_of_body(lines: list[str]) -> list[str]:
    return [word for line in lines if not TRAILER.match(line) for word in line.split()]
