"""What the server and the clients share: payloads, losses, models, data, settings, telemetry."""
