"""The wire contract: fenchel.proto and the code generated from it (``make proto``)."""
