"""Private side of Paillier encryption: the secret key, encryption by its owner, decryption."""
