"""Invitations: a client makes its key where it is, and the authority that invited it signs the key."""
