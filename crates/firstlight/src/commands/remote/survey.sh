# What a machine is and what lies in the folder there. $1: the folder, absolute or below the home folder; then files in it
# whose hashes are wanted. Changes nothing. One line for each thing: its kind, a tab, and what it is.
say() { printf "%s\t%s\n" "$1" "$2"; }
sum() { { sha256sum "$1" 2>/dev/null || shasum -a 256 "$1"; } | cut -c 1-64; }
say system "$(uname -s)"
say processor "$(uname -m)"
say name "$(uname -n)"
case $1 in
/*) folder=$1 ;;
*) folder=$HOME/$1 ;;
esac
shift
say folder "$folder"
# The file system is that of the nearest folder that is there.
near=$folder
while [ ! -e "$near" ]; do near=$(dirname "$near"); done
say df "$(df -Pk "$near" | tail -n 1)"
cat /proc/self/mounts 2>/dev/null | while read -r line; do say mount "$line"; done
if cd "$folder" 2>/dev/null; then
    for file in "$@"; do
        if [ -f "$file" ]; then say file "$(sum "$file") $file"; fi
    done
    for entry in * .[!.]*; do
        if [ -e "$entry" ]; then say entry "$entry"; fi
    done
    for run in firstlight-runs/*/run.json; do
        if [ -f "$run" ]; then say run "$(sum "$run") $run"; fi
    done
fi
# Without this line the answer was cut.
say end -
