"""Certificates, their roles and their revocation."""
