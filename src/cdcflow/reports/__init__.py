"""Reports: how results read, as lines, tables and pictures: status, plans, comparisons, timelines, rows. Pure.

A report is a sequence of parts. The command line prints them one after another; what a terminal can show is up to it.
"""
