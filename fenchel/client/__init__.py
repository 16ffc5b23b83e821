"""A participant: its session with the server, its journal, its half of the algorithms."""
