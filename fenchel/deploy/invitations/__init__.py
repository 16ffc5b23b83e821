"""Invitations, by which a client makes its key on its own machine, and has it signed by the authority."""
