"""Federated AUC maximisation: CODASCA, CODA+, CODA and the naive parallel baseline."""
