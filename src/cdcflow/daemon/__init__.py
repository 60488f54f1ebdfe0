"""The daemon: runs a capture with its components in a process, reloads settings, handles signals, tells its status."""
