"""Dashboard, metrics and health checks."""
