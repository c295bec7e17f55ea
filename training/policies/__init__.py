"""Training of the two policies, pi_init and pi_rev (paper, sections 4.4, 5.1, A.4). Not for clinical use."""
