#!/bin/sh
# A Prolog for Slurm, written by firstlight {{version}}: starts a job only on a node with a valid certificate, and checks a node without one.
# In slurm.conf of all nodes, with the path of this file:
#
#   Prolog=/etc/slurm/firstlight-prolog
#   PrologFlags=Alloc
#   PrologEpilogTimeout={{prolog timeout}}
#
# A Prolog that fails drains the node, and Slurm starts the job elsewhere.
PATH=$PATH:/usr/local/bin
node=${SLURMD_NODENAME:-$(hostname -s)}
runs=${FIRSTLIGHT_RUNS:-/var/lib/firstlight}
# Do not let users read this folder: anyone who can read the key can sign certificates.
key=${FIRSTLIGHT_SIGNING_KEY:-/etc/firstlight/signing-key.pem}
certificate=$runs/$node.certificate.json
run=$runs/$node

mkdir -p "$runs" || exit 2
[ -e "$certificate" ] && firstlight gate --certificate "$certificate" --public-key "${key%.pem}.pub.pem" \
    --max-age "${FIRSTLIGHT_MAX_AGE:-24h}" >"$run.gate.log" 2>&1 </dev/null && exit 0
# The previous run is kept.
rm -rf "$run.before"
[ ! -e "$run" ] || mv "$run" "$run.before"
rm -f "$certificate"
firstlight check {{options}} --certificate "$certificate" --signing-key "$key" -o "$run" >"$run.log" 2>&1 </dev/null
firstlight gate --certificate "$certificate" --public-key "${key%.pem}.pub.pem" >"$run.gate.log" 2>&1 </dev/null
code=$?
# slurmd prints this line in its log.
[ "$code" -eq 0 ] || echo "firstlight: $node has no valid certificate: $run.gate.log, $run/report.md"
exit "$code"
