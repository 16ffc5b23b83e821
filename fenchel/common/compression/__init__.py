"""Sparsification of vectors, and index sets that both sides know without sending them."""
