"""Live page, metrics and health checks."""
