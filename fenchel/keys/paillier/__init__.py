"""The private side of Paillier: the secret key, encryption by its owner, decryption."""
