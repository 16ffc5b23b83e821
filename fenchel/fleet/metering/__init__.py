"""Measurements and limits of one client's connection."""
