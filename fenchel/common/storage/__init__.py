"""Files that server and clients keep: stores of values, tables, run folders."""
