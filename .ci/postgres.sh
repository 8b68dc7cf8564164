# For scripts beside this one: a fresh PostgreSQL with every migration applied from empty, file by file, by psql.
# `start_postgres` sets `work` (a scratch folder, removed at the end) and `url`.
# shellcheck shell=bash

start_postgres() {
    local target=${CARGO_TARGET_DIR:-target} psql folder file
    work=$(mktemp -d /var/tmp/leasehold-ci-XXXXXX)
    # PostgreSQL refuses to be root and runs as nobody, who must reach its folder.
    chmod 711 "$work"
    trap stop_postgres EXIT
    cargo build --locked --quiet -p leasehold-sandbox --bin sandbox-exec
    mkfifo "$work/in"
    "$target/debug/sandbox-exec" postgres --dir "$work/postgres" < "$work/in" > "$work/url" 2> "$work/log" &
    server=$!
    # The server ends when its input does.
    exec 3> "$work/in"
    until grep -q . "$work/url"; do
        kill -0 "$server" 2> /dev/null || { cat "$work/log" >&2; exit 1; }
        sleep 0.1
    done
    url=$(cat "$work/url")
    # In the environment, where psql finds it: other users of the machine see arguments.
    PGPASSWORD=${url#*://*:}
    export PGPASSWORD=${PGPASSWORD%%@*}
    bare=${url/:$PGPASSWORD@/@}

    psql=$(command -v psql || true)
    for folder in "${PGBIN:-}" /usr/lib/postgresql/*/bin; do
        [ -n "$psql" ] || [ ! -x "$folder/psql" ] || psql=$folder/psql
    done
    if [ -z "$psql" ]; then
        echo "psql is missing (on Debian: apt-get install postgresql-client)" >&2
        exit 1
    fi
    for file in migrations/*.sql; do
        "$psql" -q -X -v ON_ERROR_STOP=1 --single-transaction "$bare" -f "$file" > /dev/null
    done
}

stop_postgres() {
    exec 3>&- || true
    [ -z "${server:-}" ] || wait "$server" || true
    rm -rf "$work"
}
