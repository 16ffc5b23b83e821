"""Commands of the command line, with a module for each subject."""
