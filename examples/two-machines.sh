#!/bin/bash
# A sweep on several machines that have ssh and a disk in common, and no scheduler: each takes runs until none is left.
#
#     bash examples/two-machines.sh lr.yaml songci songci.txt alice bob
#
# Run it again after a machine has failed: its run is taken again, from its last checkpoint.
set -eu
sweep=$1 run=$2 corpus=$3; shift 3
for machine in "$@"; do
    ${SSH:-ssh} "$machine" "cd '$PWD' && source .venv/bin/activate &&
        python -m helpers.run sweep '$sweep' --run '$run' --corpus '$corpus'" &
done
wait
