# Runs a command in a folder, and kills it when standard input closes because the connection is lost or closed.
# $1: the folder; then the command.
cd "$1" || exit 1
shift
exec 3<&0
"$@" </dev/null 3<&- &
command=$!
# Its outputs are closed: otherwise they would keep the connection open after the command.
{ cat <&3; kill "$command"; sleep 5; kill -9 "$command"; } >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$command"
code=$?
kill "$watch" 2>/dev/null
exit "$code"
