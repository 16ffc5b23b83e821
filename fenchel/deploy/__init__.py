"""Deployment of federations: command line, launchers, certificates, invitations, network emulation and monitoring."""
