"""Distributionally robust learning: DRDM, DRFA and SCAFF-PD."""
