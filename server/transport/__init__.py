"""The gRPC service: calls, streams, and their admission."""
