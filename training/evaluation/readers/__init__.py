"""The reader study (paper, section 6.2 and appendix C): experts rank blinded masks, tie-aware models weigh them.

select.py    the cases: balanced over findings and levels, only where every system returned a mask
design.py    which mask stands as A, B, C for which reader; the sealed key
panels.py    the pictures of a case
sheet.py     one page per reader, for a browser without a network, and a CSV sheet
rankings.py  the sheets read back, and what the ranks say by themselves: mean ranks, ties, agreement
models.py    Davidson and Rao-Kupper by maximum likelihood
prepare.py, analyse.py    the two commands
"""
