"""Messages: named arrays as bytes, frames, sparse encodings and the schema that replies are checked against."""
