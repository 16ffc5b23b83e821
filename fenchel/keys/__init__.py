"""Keys of clients and their use for sealing, pseudonyms and decryption. The server has none of these keys."""
