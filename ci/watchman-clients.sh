#!/usr/bin/env bash
# Real clients of watchman against `uvfs index --watchman`, from the package registries.
#
#   ci/watchman-clients.sh [--own]
#
# Clients: watchman's own program (Debian's watchman), fb-watchman and bser (npm), jest (npm), pywatchman (PyPI), and
# git's sample hook. A client that cannot be had is skipped by name. --own: never Debian's program, but uvfs watchman
# under that name. It needs root. It takes some minutes, and is no part of ci/test.sh.
# Prints "N passed, N failed, N skipped" at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
own=false
case ${1:-} in
--own) own=true ;;
'') ;;
*) printf 'usage: %s [--own]\n' "$0" >&2; exit 2 ;;
esac
uvfs=${UVFS:-}
if [ -z "$uvfs" ]; then
    cargo build --quiet --release -p uvfs-cli || exit 1
    uvfs=$PWD/target/release/uvfs
fi
work=$(mktemp -d -p "${UVFS_TEST_DIR:-/dev/shm}") || exit 1
passed=0 failed=0 skipped=0
export WATCHMAN_SOCK=$work/watchman.sock
# Nothing of the user's own.
export HOME=$work/home GIT_CONFIG_GLOBAL=/dev/null npm_config_cache=${npm_config_cache:-$HOME/.npm}
mkdir -p "$work/home" "$work/bin" "$work/tree" "$work/packages"
end() {
    "$uvfs" index --stop --socket "$work/index.sock" 2>/dev/null
    rm -rf "$work"
}
trap end EXIT
"$uvfs" index --socket "$work/index.sock" --watchman "$WATCHMAN_SOCK" -d "$work/tree" || {
    printf 'skipped: uvfs index needs root\n'
    exit 0
}
printf '#!/bin/sh\nexec "%s" watchman "$@"\n' "$uvfs" >"$work/bin/watchman"
chmod +x "$work/bin/watchman"

# check NAME COMMAND...: passes if the command does.
check() {
    local name=$1
    shift
    if (set -e; "$@") >"$work/log" 2>&1; then
        printf 'passed %s\n' "$name"
        passed=$((passed + 1))
    else
        printf 'FAILED %s\n' "$name"
        sed 's/^/    /' "$work/log" | tail -25
        failed=$((failed + 1))
    fi
}
skip() {
    printf 'skipped %s: %s\n' "$1" "$2"
    skipped=$((skipped + 1))
}

# The program itself: the words that scripts use. $1: which program.
program() {
    local dir=$work/tree/program-${1##*/}-$RANDOM answer
    mkdir -p "$dir/sub/.git"
    printf x >"$dir/a.c"
    "$1" "${@:2}" watch-project "$dir/sub" | grep -q "\"watch\": *\"$dir/sub\""
    "$1" "${@:2}" watch "$dir"
    "$1" "${@:2}" --no-pretty find "$dir" '*.c' | grep -q '"name": *"a.c"'
    answer=$("$1" "${@:2}" -j --no-pretty <<<"[\"query\",\"$dir\",{\"fields\":[\"name\"],\"suffix\":\"c\"}]")
    grep -q '"files": *\["a.c"\]' <<<"$answer"
    printf x >"$dir/b.c"
    "$1" "${@:2}" since "$dir" "$(sed 's/.*"clock": *"\([^"]*\)".*/\1/' <<<"$answer")" | grep -q '"name": *"b.c"'
    "$1" "${@:2}" watch-del "$dir"
}

# git's sample hook for fsmonitor: the output of git status must be that without it. $1: a directory for watchman.
hook() {
    local repo=$work/tree/repo-$RANDOM hook seed
    hook=$(git --exec-path)/../../share/git-core/templates/hooks/fsmonitor-watchman.sample
    mkdir -p "$repo" && cd "$repo"
    git init -q . && git config user.name t && git config user.email t@example.org
    for dir in $(seq 20); do
        mkdir -p "d$dir/e"
        for file in $(seq 20); do printf '%s\n' "$file" >"d$dir/e/f$file"; done
    done
    git add -A && git commit -qm first
    cp "$hook" .git/hooks/query-watchman && chmod +x .git/hooks/query-watchman
    git config core.fsmonitor .git/hooks/query-watchman && git config core.untrackedCache true
    for seed in $(seq 25); do
        changes "$seed"
        PATH=$1:$PATH git status --porcelain=v1 >"$work/with" 2>"$work/said"
        # The hook falls back without a failure of git's.
        ! [ -s "$work/said" ] || { cat "$work/said"; return 1; }
        git -c core.fsmonitor=false -c core.untrackedCache=false status --porcelain=v1 >"$work/without"
        diff "$work/with" "$work/without"
    done
    # That the hook asked, and git did not fall back in silence.
    "$uvfs" watchman watch-list | grep -q "$repo"
}

# Some changes of the work tree, by a seed.
changes() {
    RANDOM=$1
    local nth dir
    for nth in $(seq 8); do
        dir=d$((RANDOM % 20 + 1))
        case $((RANDOM % 5)) in
        0) printf '%s\n' "$RANDOM" >"$dir/e/f$((RANDOM % 25))" || true ;;
        1) rm -f "$dir/e/f$((RANDOM % 20 + 1))" ;;
        2) mv "$dir" "d$((RANDOM % 30))x" 2>/dev/null || true ;;
        3) rm -rf "$dir/e" && mkdir -p "$dir/e" && printf new >"$dir/e/new$nth" ;;
        4) git checkout -q -- "d$((RANDOM % 20 + 1))" 2>/dev/null || true ;;
        esac
    done 2>/dev/null
}

npm_packages() {
    (cd "$work/packages" && npm init -y >/dev/null &&
        timeout 300 npm install --no-audit --no-fund "$@" >"$work/npm.log" 2>&1)
}

fb_watchman() {
    local dir=$work/tree/node
    mkdir -p "$dir"
    cat >"$work/packages/client.js" <<'JS'
const fs = require('fs'), path = require('path'), assert = require('assert');
const watchman = require('fb-watchman');
const dir = process.argv[2];
const client = new watchman.Client();
const command = (...args) =>
  new Promise((done, failed) => client.command(args, (error, answer) => (error ? failed(error) : done(answer))));
const waiting = [];
let seen = [];
client.on('subscription', pdu => {
  for (const file of pdu.files || []) seen.push(`${file.name} ${file.exists}`);
  waiting.splice(0).forEach(look => look());
});
const until = async wanted => {
  while (!wanted.every(name => seen.includes(name))) await new Promise(look => waiting.push(look));
  seen = [];
};
(async () => {
  await new Promise((done, failed) =>
    client.capabilityCheck({ optional: ['nothing'], required: ['relative_root', 'cmd-watch-project'] }, (error, answer) => {
      if (error) return failed(error);
      assert.deepStrictEqual(answer.capabilities, { nothing: false, relative_root: true, 'cmd-watch-project': true });
      done();
    }));
  const { watch } = await command('watch-project', dir);
  fs.writeFileSync(path.join(dir, 'a.js'), '1');
  fs.writeFileSync(path.join(dir, 'ü.js'), '1');
  const first = await command('query', watch, { suffix: ['js'], fields: ['name', 'size', 'mtime_ms', 'exists', 'type'] });
  assert.deepStrictEqual(first.files.map(file => file.name).sort(), ['a.js', 'ü.js']);
  assert(first.files.every(file => file.size === 1 && file.type === 'f' && file.exists));
  const { clock } = await command('clock', watch, { sync_timeout: 1000 });
  await command('subscribe', watch, 'sub', { since: clock, expression: ['type', 'f'], fields: ['name', 'exists'] });
  fs.mkdirSync(path.join(dir, 'd'));
  fs.renameSync(path.join(dir, 'a.js'), path.join(dir, 'd/a.js'));
  await until(['a.js false', 'd/a.js true']);
  fs.renameSync(path.join(dir, 'd'), path.join(dir, 'e'));
  await until(['d/a.js false', 'e/a.js true']);
  fs.rmSync(path.join(dir, 'e'), { recursive: true });
  await until(['e/a.js false']);
  await assert.rejects(command('query', watch, { expression: ['nothing'] }), /unknown expression term 'nothing'/);
  await command('unsubscribe', watch, 'sub');
  client.end();
})().catch(error => { console.error(error); process.exit(1); });
setTimeout(() => { console.error('no answer in 30 s', seen); process.exit(1); }, 30000).unref();
JS
    node "$work/packages/client.js" "$dir"
}

# jest finds its tests through the program watchman, and after changes too.
jest() {
    local dir=$work/tree/jest found
    mkdir -p "$dir/lib"
    printf '{"jest": {"haste": {}}}\n' >"$dir/package.json"
    printf 'module.exports = 1;\n' >"$dir/lib/one.js"
    printf 'test("one", () => expect(require("./one")).toBe(1));\n' >"$dir/lib/one.test.js"
    ln -sfn "$work/packages/node_modules" "$work/tree/node_modules"
    run_jest() {
        (cd "$dir" && DEBUG='' PATH=$1:$PATH "$work/packages/node_modules/.bin/jest" --watchman \
            --cacheDirectory "$work/jest-cache" "${@:2}" 2>&1)
    }
    found=$(run_jest "$1" --listTests)
    [ "$found" = "$dir/lib/one.test.js" ] || { printf 'found: %s\n' "$found"; return 1; }
    mkdir "$dir/more"
    mv "$dir/lib/one.js" "$dir/lib/one.test.js" "$dir/more"
    printf 'test("two", () => expect(2).toBe(2));\n' >"$dir/lib/two.test.js"
    found=$(run_jest "$1" --listTests | sort)
    [ "$found" = "$dir/lib/two.test.js"$'\n'"$dir/more/one.test.js" ] || { printf 'found: %s\n' "$found"; return 1; }
    run_jest "$1" | grep -q 'Tests: *2 passed, 2 total'
    # That the answers came from this server: it watches the directory now, and jest's crawler asked it.
    "$uvfs" watchman watch-list | grep -q "$dir"
}

pywatchman() {
    local dir=$work/tree/python
    mkdir -p "$dir"
    cat >"$work/client.py" <<'PY'
import os, sys, pywatchman

root = sys.argv[1]
for send, receive in [("json", "json"), ("bser", "bser"), ("bser-v1", "bser-v1")]:
    client = pywatchman.client(timeout=20, sendEncoding=send, recvEncoding=receive)
    client.capabilityCheck(required=["cmd-watch-project", "term-dirname", "field-cclock"])
    try:
        client.capabilityCheck(required=["never"])
        sys.exit("a capability that is not there was found")
    except pywatchman.WatchmanError:
        pass
    watch = client.query("watch-project", root)["watch"]
    assert watch == root, watch
    name = f"file {send} \u00fc"
    clock = client.query("clock", root, {"sync_timeout": 1000})["clock"]
    client.query("subscribe", root, "sub", {"since": clock, "fields": ["name", "exists"]})
    with open(os.path.join(root, name), "w") as file:
        file.write("text")
    answer = client.query("query", root, {"since": clock, "fields": ["name", "size", "new"]})
    files = {file["name"]: file for file in answer["files"]}
    assert files[name] == {"name": name, "size": 4, "new": True}, answer
    seen = []
    while name not in seen:
        client.receive()
        # All clients of a process share this list, so PDUs about states of the one before are in it.
        pdus = client.getSubscription("sub") or []
        seen += [file["name"] for pdu in pdus for file in pdu.get("files", [])]
    client.query("state-enter", root, "busy")
    client.query("state-leave", root, "busy")
    os.unlink(os.path.join(root, name))
    answer = client.query("query", root, {"since": answer["clock"], "fields": ["name"], "expression": ["not", "exists"]})
    assert answer["files"] == [name], answer
    client.close()
PY
    "$work/python/bin/python" "$work/client.py" "$dir"
}

check 'uvfs watchman' program "$work/bin/watchman"
debian=
if ! $own && command -v watchman >/dev/null; then
    debian=$(command -v watchman)
    check "$("$debian" --version), Debian's watchman" program "$debian" --no-spawn -U "$WATCHMAN_SOCK"
    printf '#!/bin/sh\nexec "%s" --no-spawn -U "%s" "$@"\n' "$debian" "$WATCHMAN_SOCK" >"$work/debian"
    mkdir -p "$work/bin-debian" && install -m 755 "$work/debian" "$work/bin-debian/watchman"
else
    skip "Debian's watchman" 'it is not installed (apt-get install watchman)'
fi
if [ -e "$(git --exec-path)/../../share/git-core/templates/hooks/fsmonitor-watchman.sample" ]; then
    check "git's sample hook, by uvfs watchman" hook "$work/bin"
    [ -z "$debian" ] || check "git's sample hook, by Debian's watchman" hook "$work/bin-debian"
else
    skip "git's sample hook" 'git has no templates here'
fi
if ! command -v npm >/dev/null; then
    skip 'fb-watchman, bser and jest' 'there is no npm'
elif ! npm_packages fb-watchman@2.0.4 bser@2.1.1 jest@29; then
    skip 'fb-watchman, bser and jest' 'npm cannot install them'
else
    check 'fb-watchman 2.0.4 with bser 2.1.1' fb_watchman
    check "jest $(node -p "require('$work/packages/node_modules/jest/package.json').version"), --watchman" jest "$work/bin"
fi
if python3 -m venv "$work/python" >"$work/log" 2>&1 &&
    timeout 300 "$work/python/bin/pip" -q install pywatchman >"$work/log" 2>&1; then
    check 'pywatchman: JSON, BSER, BSER of version 1' pywatchman
else
    skip pywatchman 'pip cannot install it'
fi
printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
