"""Crash points: programs that kill themselves, and disks that lose what was not synced."""
