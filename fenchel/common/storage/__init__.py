"""Files that both sides keep: stores, tables, run folders."""
