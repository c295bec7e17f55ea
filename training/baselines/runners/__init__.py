"""Scripts that run other systems on what ``baselines write`` wrote, each in a checkout of that system and in its
environment.

``baselines write`` copies a system's script and ``requested.py`` beside its requests; they need nothing of XFlow's.
Each loads its model once, goes on where it was stopped, and leaves what ``baselines read`` expects. Written against the
systems' repositories as of 2026-11-30; tested on stand-ins of the functions that they call, never on the systems.
"""
