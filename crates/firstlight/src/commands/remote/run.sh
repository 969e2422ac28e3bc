# Runs a command in a folder, as long as standard input is open: it closes when the connection is lost or ended.
# $1: the folder; then the command.
cd "$1" || exit 1
shift
exec 3<&0
"$@" </dev/null 3<&- &
command=$!
# With none of our outputs, which would keep the connection open behind the command.
{ cat <&3; kill "$command"; sleep 5; kill -9 "$command"; } >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$command"
code=$?
kill "$watch" 2>/dev/null
exit "$code"
