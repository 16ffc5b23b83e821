"""The same federated averaging job on other frameworks, on a bare gRPC echo and on Fenchel, in one table."""
