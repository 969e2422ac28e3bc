#!/bin/sh
# A HealthCheckProgram of Slurm, written by firstlight {{version}}: checks this node and drains it where something is found.
# In slurm.conf of all nodes, with the path of this file:
#
#   HealthCheckProgram=/etc/slurm/firstlight-healthcheck
#   HealthCheckInterval=3600
#   HealthCheckNodeState=IDLE
#
# Only idle nodes: beside a job its times would say nothing, and the job would wait. slurmd ends what takes longer than 60 s.
PATH=$PATH:/usr/local/bin
node=${SLURMD_NODENAME:-$(hostname -s)}
runs=${FIRSTLIGHT_RUNS:-/var/lib/firstlight}
run=$runs/$node

mkdir -p "$runs" || exit 2
# The run before this one is kept beside it.
rm -rf "$run.before"
[ ! -e "$run" ] || mv "$run" "$run.before"
firstlight check {{options}} -o "$run" >"$run.log" 2>&1 </dev/null
code=$?
# 2 is a failed and 3 an incomplete check: neither proves a fault of the node.
if [ "$code" -eq 1 ]; then
    scontrol update NodeName="$node" State=DRAIN Reason="firstlight check has findings: $run/report.md"
fi
exit "$code"
