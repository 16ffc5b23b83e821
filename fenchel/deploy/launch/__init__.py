"""Launchers: a federation in one process, on this machine, or by the command line."""
