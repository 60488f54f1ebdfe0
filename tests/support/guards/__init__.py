"""Costs without a clock."""
