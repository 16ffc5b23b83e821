"""Projection of a finished run to other links."""
