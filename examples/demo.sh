#!/usr/bin/env bash
# From a model to a comparison of plans, on two local ranks whose link is emulated. Run by `make demo`.
# Each command is printed as it is typed; its output is what it really prints.
set -euo pipefail

MODEL=examples/gpt.py
ARGS=(--arg layers=10 --arg hidden=256 --arg heads=8 --arg sequence=512 --arg micro_batch=1 --arg vocab=512)
TP=2
LINK=40MB/s:100us
BUDGET=between:full,none,0.5
STEPS=5
ALGORITHMS=none,full,selective,ondemand,heu
FOLDER=demo

say() {
    printf '\n$ %s\n' "$*"
    "$@"
}

cd "$(dirname "$0")/.."
mkdir -p "$FOLDER"
PROFILE=$FOLDER/profile.json
PLAN=$FOLDER/plan.json

say lynx profile "$MODEL" --tp "$TP" "${ARGS[@]}" --link "$LINK" -o "$PROFILE" --force
say lynx plan "$PROFILE" --algo heu --budget "$BUDGET" -o "$PLAN" --force
say lynx inspect "$PLAN"
say lynx validate "$PLAN"
say lynx run --plan "$PLAN" --steps "$STEPS" --verify
say lynx compare "$PROFILE" --budget "$BUDGET" --algo "$ALGORITHMS" --run --steps "$STEPS"
