#!/bin/bash
# A sweep on a Slurm cluster: each task takes runs until none is left. Submit it from the folder of this project, on a disk
# that all nodes see:
#
#     SWEEP=lr.yaml RUN=songci CORPUS=songci.txt sbatch --array=1-6 examples/slurm-array.sh
#
# A run whose task is killed or requeued is taken again, from its last checkpoint.
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --output=runs/slurm-%A-%a.log
set -eu
source .venv/bin/activate
exec python -m helpers.run sweep "$SWEEP" --run "$RUN" ${CORPUS:+--corpus "$CORPUS"} ${PRESET:+--preset "$PRESET"}
