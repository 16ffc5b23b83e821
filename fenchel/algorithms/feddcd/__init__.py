"""Federated dual coordinate descent: exact, inexact and accelerated."""
