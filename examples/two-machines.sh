#!/bin/bash
# A sweep on several machines that have ssh and a disk in common, and no scheduler: each takes every n-th run.
#
#     bash examples/two-machines.sh lr.yaml songci songci.txt 6 alice bob      # six runs: 1 3 5 on alice, 2 4 6 on bob
#
# Run it again after a machine has failed: what has finished is skipped.
set -eu
sweep=$1 run=$2 corpus=$3 runs=$4; shift 4
machines=("$@")
command="python -m helpers.run --sweep '$sweep' --run '$run' --corpus '$corpus'"
here="cd '$PWD' && source .venv/bin/activate"
bash -c "$here && $command corpus vocab tokenize"
for m in "${!machines[@]}"; do
    own=$(seq -s ' ' $((m + 1)) ${#machines[@]} "$runs")
    ${SSH:-ssh} "${machines[$m]}" "$here && for i in $own; do $command train --only \$i; done" &
done
wait
bash -c "$here && $command"
