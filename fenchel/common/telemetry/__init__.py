"""Traces and metrics in the forms that other programs read."""
