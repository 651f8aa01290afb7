#!/bin/sh
# watched.sh FOLDER COMMAND...: runs the command as one process of mpirun and leaves in
# the folder, by the process's number: pid.N, out.N, err.N, and when it has ended
# exit.N with its status and the time. It outlives what mpirun sends to end it.
trap '' TERM USR1 INT
folder=$1
shift
process=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
(
  trap - TERM USR1 INT
  exec "$@" >"$folder/out.$process" 2>"$folder/err.$process"
) &
echo $! >"$folder/pid.$process"
wait $!
echo "$? $(date +%s.%N)" >"$folder/exit.part.$process"
mv "$folder/exit.part.$process" "$folder/exit.$process"
exit 0
