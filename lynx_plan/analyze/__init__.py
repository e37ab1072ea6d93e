"""Pure facts of a cost graph: index and liveness, layer classes, windows. May import model and networkx."""
