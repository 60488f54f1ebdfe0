"""Targets that packages bring: what one implements, and the delivery of a log's tables to it, each change once.

ChangeLog ──▶ delivery ──▶ reduction: the last change of each key, with whole rows ──▶ port.TargetTables (yours)
                 ▲                                                                          │
                 └──────────── places: how far each table is, stored with its rows ◀────────┘
"""
