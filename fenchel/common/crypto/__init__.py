"""Public side of Paillier encryption: operations that need the public key alone."""
