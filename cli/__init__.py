"""The command line: one file per verb, everything imported lazily. Installed as lynx_plan.cli."""
