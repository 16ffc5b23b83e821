"""Reading a finished, running or killed run: tables in memory, in the terminal, as a page, as a picture."""
