"""The coordinator: gRPC service, fleet, checkpoints, evaluation, server halves of the algorithms."""
