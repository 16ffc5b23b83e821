"""Ciphertexts as the numbers that they are: what one implementation of Paillier computes on without a private key."""
