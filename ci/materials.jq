# The bill of materials of the program `uvfs` (CycloneDX 1.5), from `cargo metadata`.
#
# $tree: what `cargo tree` prints with {p}, so that only features of this program count; cargo metadata has those of the
# whole workspace. $lock: lines "name version checksum". $time: of the sources, in ISO 8601.

def reference: if .source == null then "\(.name)@\(.version)" else "pkg:cargo/\(.name)@\(.version)" end;
def licences: [{expression: ((.license // "NOASSERTION") | gsub(" */ *"; " OR "))}];

($tree | split("\n") | map(select(. != "") | split(" ") | "\(.[0]) \(.[1] | ltrimstr("v"))") | unique) as $in
| ($lock | split("\n") | map(select(. != "") | split(" ") | {key: "\(.[0]) \(.[1])", value: .[2]}) | from_entries) as $sums
| [.packages[] | select("\(.name) \(.version)" | IN($in[]))] as $packages
| ($packages | map({key: .id, value: reference}) | from_entries) as $references
| ($packages[] | select(.name == "uvfs-cli")) as $program
| {
    bomFormat: "CycloneDX",
    specVersion: "1.5",
    version: 1,
    metadata: {
        timestamp: $time,
        component: {
            type: "application", "bom-ref": ($program | reference), name: $program.name, version: $program.version,
            licenses: ($program | licences)
        },
        properties: [{
            name: "uvfs:origin",
            value: "ci/release.sh, from cargo tree, cargo metadata and Cargo.lock. Not in it: macros and build scripts, Rust's standard library, the C library."
        }]
    },
    components: [$packages[] | select(.name != "uvfs-cli") | {
        type: "library", "bom-ref": reference, name, version, licenses: licences
    } + (if .source == null then {} else {purl: reference} end)
      + ($sums["\(.name) \(.version)"] | if . == null then {} else {hashes: [{alg: "SHA-256", content: .}]} end)],
    dependencies: [.resolve.nodes[] | select($references[.id]) | {
        ref: $references[.id],
        dependsOn: [.deps[] | select(any(.dep_kinds[]; .kind == null)) | $references[.pkg] | values] | unique
    }]
}
