"""Engines that start client processes."""
