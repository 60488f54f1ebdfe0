"""Earlier names of public modules of `cdcflow.log.query`, for programs that import them."""

import sys

from cdcflow.log.query import common_clock, consumer, several_logs

for _name, _module in (("common", common_clock), ("consuming", consumer), ("several", several_logs)):
    sys.modules[f"{__name__}.{_name}"] = _module
    globals()[_name] = _module
