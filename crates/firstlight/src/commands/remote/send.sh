# Prints files, each after a line with its size, or with - for a missing file. $1: the folder; then the files.
cd "$1" || exit 1
shift
for file in "$@"; do
    if [ -f "$file" ]; then
        wc -c < "$file"
        cat "$file"
    else
        echo -
    fi
done
