"""The job as an app of Flower's deployment engine."""
