"""The first hour of a newcomer with Fenchel and with Flower: installation, first round, whole job, lines to write."""
