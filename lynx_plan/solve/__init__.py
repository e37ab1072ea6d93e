"""Solvers: one algorithm per file, one signature. May import everything below it, and highspy."""
