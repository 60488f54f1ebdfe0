"""The daemon: runs a capture and its components in a process, reloads settings, handles signals, reports its status."""
