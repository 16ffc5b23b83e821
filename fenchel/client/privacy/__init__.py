"""A client's differential privacy: noise, budget, ledger and policy."""
