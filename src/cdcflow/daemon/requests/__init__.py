"""Requests to a running daemon, from other processes: changed settings, backfills, repairs; and waiting for them."""
