"""The PyTorch side: capture, measure, bind, rewrite, run. Never imports a solver."""

import os

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # host names that do not resolve are no news to a user
