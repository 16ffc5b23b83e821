"""The record of what each party of a run could see."""
