"""Records only: what Lynx's files hold. Frozen, slotted, keyword-only; derived facts live in `analyze`."""
