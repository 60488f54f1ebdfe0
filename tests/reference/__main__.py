"""Write the generated reference pages."""

from __future__ import annotations

import sys

from tests.support.plugins import FILES

sys.path.insert(0, str(FILES / "src"))  # as pytest has it

from tests.reference.pages import pages

for path, text in pages().items():
    path.write_text(text)
