"""Rounds that HyFDCA needs on breast cancer: the runs, the tables, the figures, the page."""
