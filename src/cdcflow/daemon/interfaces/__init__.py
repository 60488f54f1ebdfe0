"""Access to the daemon from outside: control socket, control table, HTTP with the page, notifications, `traces`."""
