"""The mathematics of differential privacy (docs/specifications/fedpdm.md, section 3): sensitivities and accountants."""
