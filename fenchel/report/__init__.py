"""Reports of finished, running or killed runs: tables in memory and in the terminal, pages, pictures."""
