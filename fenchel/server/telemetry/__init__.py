"""Records and exports of a run: tables, time breakdown, metrics, traces."""
