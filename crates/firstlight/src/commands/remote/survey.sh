# Prints facts about a machine and the contents of a folder. $1: the folder, absolute or below the home folder; then files in it
# to hash. Changes nothing. Each line is a kind, a tab and a value.
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
# The file system of the nearest existing folder.
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
# The reader requires this line: without it the output was truncated.
say end -
