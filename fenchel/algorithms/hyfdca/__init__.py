"""Hybrid federated dual coordinate ascent, with Paillier encryption."""
