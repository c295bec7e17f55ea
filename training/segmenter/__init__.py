"""The segmenter: SAM3's tracker, fine-tuned on boxes and clicks (paper, 4.3, 5.1, A.4)."""
