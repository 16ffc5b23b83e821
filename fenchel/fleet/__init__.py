"""The clients of a run as an algorithm addresses them: cohorts, requests, replies."""
