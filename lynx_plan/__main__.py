"""`python -m lynx_plan` is the `lynx` command."""

from lynx_plan.cli.main import main

if __name__ == "__main__":
    main()
