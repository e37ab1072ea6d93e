"""Machine files that Lynx ships, as data."""
