"""From the restricted sets to the paper's splits: readers, agreement, splits, and a miniature to prove them on."""
