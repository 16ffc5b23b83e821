"""Federated algorithms, by subject: settings, server half and client half of each."""
