"""Write the generated reference pages."""

from __future__ import annotations

from tests.reference.pages import pages

for path, text in pages().items():
    path.write_text(text)
