"""As much of Triton as tells how it tunes."""
