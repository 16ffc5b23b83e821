"""The public side of the Paillier layer: what can be done with a public key alone."""
