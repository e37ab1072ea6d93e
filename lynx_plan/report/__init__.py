"""Renderables of plans, graphs and timelines. May import everything below it, and rich."""
