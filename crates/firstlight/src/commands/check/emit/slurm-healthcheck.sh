#!/bin/sh
# A HealthCheckProgram for Slurm, written by firstlight {{version}}: checks this node and drains it if there are findings.
# In slurm.conf of all nodes, with the path of this file:
#
#   HealthCheckProgram=/etc/slurm/firstlight-healthcheck
#   HealthCheckInterval=3600
#   HealthCheckNodeState=IDLE
#
# Only idle nodes, because a concurrent job would affect the timings and be slowed down. slurmd kills the program after 60 s.
PATH=$PATH:/usr/local/bin
node=${SLURMD_NODENAME:-$(hostname -s)}
runs=${FIRSTLIGHT_RUNS:-/var/lib/firstlight}
run=$runs/$node

mkdir -p "$runs" || exit 2
# The previous run is kept.
rm -rf "$run.before"
[ ! -e "$run" ] || mv "$run" "$run.before"
firstlight check {{options}} -o "$run" >"$run.log" 2>&1 </dev/null
code=$?
# 2 is a failed and 3 an incomplete check: neither proves a fault of the node.
if [ "$code" -eq 1 ]; then
    scontrol update NodeName="$node" State=DRAIN Reason="firstlight check has findings: $run/report.md"
fi
exit "$code"
