"""Earlier names of public modules of `cdcflow.log`, for programs that import them."""

import sys

from cdcflow.log.files import layout
from cdcflow.log.read import feed, moments, reader

for _name, _module in (("feed", feed), ("layout", layout), ("moments", moments), ("reader", reader)):
    sys.modules[f"{__name__}.{_name}"] = _module
