"""Spark, in this process or another one."""
