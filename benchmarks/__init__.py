"""Speed as ratios, measured side by side in one interleaved run, and only behind green tests."""
