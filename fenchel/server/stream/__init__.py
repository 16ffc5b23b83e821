"""The client stream: messages between the server and one client."""
