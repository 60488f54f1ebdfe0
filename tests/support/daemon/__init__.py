"""Whole daemons as processes: the bank that keeps them busy, and settings that change."""
