"""Code that server and clients share: payloads, losses, models, data, settings, telemetry."""
