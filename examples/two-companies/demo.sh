#!/bin/sh
# The whole federation on this machine, with TLS and keys: sh demo.sh [folder]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$(mktemp -d)}
port=${PORT:-4222}
mkdir -p "$folder"
cp "$here"/*.toml "$here/make_data.py" "$folder"
cd "$folder"

python make_data.py
anabranch keys init keys --server localhost --listen 127.0.0.1 --port "$port" --clients bank,shop --federation orders

(cd keys/broker && exec nats-server -c nats-server.conf -l nats-server.log) &
broker=$!
trap 'kill $broker ${shop:-} ${bank:-} 2>/dev/null || true' EXIT

# Where another program has the port, the parties would meet that one, and call its certificate wrong.
until grep -q "Server is ready" keys/broker/nats-server.log 2>/dev/null; do
    if ! kill -0 $broker 2>/dev/null; then
        echo "the nats-server has ended: $(tail -n 1 keys/broker/nats-server.log)" >&2
        echo "Where port $port is taken, PORT=4333 sh demo.sh takes another." >&2
        exit 1
    fi
    sleep 0.1
done

# In any order: each waits for the others.
anabranch client shop.toml 2> shop.log &
shop=$!
anabranch client bank.toml 2> bank.log &
bank=$!
anabranch server server.toml

wait $bank
wait $shop
echo "Each party's own part of the model:"
ls "$folder"/state/*/model.safetensors
