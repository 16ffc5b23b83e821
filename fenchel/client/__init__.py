"""Client side: connection to the server, session and journal of a run, limits of the client's operator."""
