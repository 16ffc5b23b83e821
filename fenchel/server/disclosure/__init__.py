"""The disclosure record: the kinds of data that each party of a run could see."""
