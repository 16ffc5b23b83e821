"""Comparison of the trials of a search."""
