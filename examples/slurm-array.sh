#!/bin/bash
# A sweep on a Slurm cluster: one task for each run. Submit it from the folder of this project, on a disk that all nodes see:
#
#     export SWEEP=lr.yaml RUN=songci CORPUS=songci.txt
#     # once, before: the rooms that all runs share
#     python -m helpers.run corpus vocab tokenize --sweep $SWEEP --run $RUN --corpus $CORPUS
#     sbatch --array=1-6 examples/slurm-array.sh
#     # after: the page
#     python -m helpers.run --sweep $SWEEP --run $RUN --corpus $CORPUS
#
# A task that is killed or requeued goes on from its last checkpoint.
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --output=runs/slurm-%A-%a.log
set -eu
source .venv/bin/activate
exec python -m helpers.run train --sweep "$SWEEP" --run "$RUN" ${CORPUS:+--corpus "$CORPUS"} ${PRESET:+--preset "$PRESET"} \
    --only "$SLURM_ARRAY_TASK_ID"
