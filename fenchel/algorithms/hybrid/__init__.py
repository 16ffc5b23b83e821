"""Baselines for data that are split by samples and by features."""
