"""Traces and metrics in standard formats."""
