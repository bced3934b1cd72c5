"""Recording inference: torch models in the ait and msit layouts, and programs on the ATB acceleration library."""
