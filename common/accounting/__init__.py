"""The mathematics of differential privacy (FedPDM specification, section 3): sensitivities and accountants."""
