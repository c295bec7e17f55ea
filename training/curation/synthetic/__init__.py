"""Synthetic studies: an anatomy, its lesions, a radiograph of them, and the words and labels that go with it."""
