"""Start of federations: in one process, or in client processes that an engine starts."""
