"""Secrets that the clients share and the server never has."""
