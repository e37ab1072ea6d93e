"""The PyTorch side: capture, measure, bind, rewrite, run. Never imports a solver."""
