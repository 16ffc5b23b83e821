"""Ciphertexts as residues modulo ``n^2``: arithmetic of the implementations of Paillier without a private key."""
