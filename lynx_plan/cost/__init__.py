"""What an op costs on a machine: roofline for compute, alpha-beta for collectives. May import model."""
