"""The stream of one client: messages in both directions, from frames to replies."""
