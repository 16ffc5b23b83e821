"""Keys of clients, and what they are for: sealing, pseudonyms, decryption; the server never has one."""
