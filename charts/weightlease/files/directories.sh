# Creates the folders given as arguments, each as MODE:PATH, and gives them to the agent.
# Runs as root with CAP_CHOWN alone; a folder that exists keeps its mode and its contents.
for argument in "$@"; do
    mode=${argument%%:*}
    folder=${argument#*:}
    [ -d "$folder" ] || mkdir -m "$mode" "$folder"
    chown 47000:47000 "$folder"
done
