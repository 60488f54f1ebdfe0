"""The daemon seen from outside: control socket, control table, HTTP with the page, notifications, OpenTelemetry traces."""
