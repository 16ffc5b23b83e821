"""Validated settings: one file describes a run."""
