"""Logs, warehouses and settings files that an earlier version wrote, and tests that this version reads them."""
