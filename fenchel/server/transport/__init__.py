"""The gRPC service: its calls, and their admission."""
