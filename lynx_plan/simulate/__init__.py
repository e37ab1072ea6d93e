"""Two-stream timeline of a rank and memory over time. May import analyze and cost."""
