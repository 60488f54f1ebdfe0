"""The daemon seen from outside: HTTP health and metrics, and the control socket."""
