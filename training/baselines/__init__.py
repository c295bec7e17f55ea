"""Other systems on the same scale: what each is given, and what its own output says (paper, Table 1, and beyond)."""
