//! Every workload runs for a moment, and its JSON has the documented keys, and only them, and agrees with itself.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn bench(args: &[&str]) -> (bool, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_uvfs-bench")).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.success(), text(out.stdout), text(out.stderr))
}

/// Every workload, as `--list` has it.
fn workloads() -> Vec<String> {
    let (good, out, err) = bench(&["--list"]);
    assert!(good, "{err}");
    let names = out.lines().filter(|l| !l.starts_with(' ')).filter_map(|l| l.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Those of these options that a workload has.
fn options<'a>(workload: &str, options: &[[&'a str; 2]]) -> Vec<&'a str> {
    let (good, help, _) = bench(&[workload, "--help"]);
    assert!(good);
    options.iter().filter(|[name, _]| help.contains(&format!("{name} <"))).flatten().copied().collect()
}

fn can_mount() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    rustix::process::geteuid().is_root() && device.is_ok()
}

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    std::fs::read_to_string(path).unwrap()
}

/// A run too short to mean anything.
fn report(workload: &str, more: &[&str]) -> Value {
    let short = [workload, "--seconds", "0.002", "--rounds", "2", "--format", "json"];
    let (good, out, err) = bench(&[&short[..], more].concat());
    assert!(good, "{workload}: {err}");
    serde_json::from_str(&out).unwrap()
}

/// Words between backticks of the row of the document's table that begins with `key`.
fn documented(key: &str) -> BTreeSet<String> {
    let text = document();
    let (_, schema) = text.split_once("\n## JSON\n").unwrap();
    let schema = schema.split_once("\n## ").map_or(schema, |(schema, _)| schema);
    let start = format!("| `{key}` |");
    let row = schema
        .lines()
        .find_map(|line| line.strip_prefix(&start))
        .unwrap_or_else(|| panic!("{key} has no row"));
    row.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The workloads' parameters, as the document lists them in the row of `rows`.
fn parameters() -> BTreeSet<String> {
    let text = document();
    let (_, list) = text.split_once("the workload's parameters (").unwrap();
    let (list, _) = list.split_once(')').unwrap();
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

fn array<'v>(report: &'v Value, key: &str) -> &'v Vec<Value> {
    report[key].as_array().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn check_keys(report: &Value) {
    for key in keys(report) {
        let mut known = documented(&key);
        if matches!(key.as_str(), "ratios" | "scaling") {
            known.extend(parameters());
        }
        let parts = match &report[&key] {
            Value::Array(all) if all.first().is_some_and(Value::is_object) => all.clone(),
            Value::Object(_) => vec![report[&key].clone()],
            _ => continue,
        };
        for part in parts {
            let unknown: Vec<_> = keys(&part).difference(&known).cloned().collect();
            assert!(unknown.is_empty(), "{key} has undocumented keys {unknown:?}");
        }
    }
    let must = ["version", "workload", "machine", "config", "notes", "rows", "ratios", "scaling"];
    assert!(must.iter().all(|key| keys(report).contains(*key)));
    for key in ["cpus", "model", "kernel", "load", "dentry-state", "steal"] {
        assert!(keys(&report["machine"]).contains(key), "machine has no {key}");
    }
    for row in array(report, "rows") {
        let must = ["arm", "threads", "ops_per_s", "ns_per_op", "dropped", "undropped_ns_per_op"];
        assert!(must.iter().all(|key| keys(row).contains(*key)), "{row}");
    }
}

fn check_spread(spread: &Value) {
    let [min, median, max] = ["min", "median", "max"].map(|key| number(&spread[key]));
    assert!(0.0 < min && min <= median && median <= max, "{spread}");
}

/// The fields that name a row: everything but the figures.
fn place(value: &Value, arm: &str) -> Vec<String> {
    let figures = ["ops_per_s", "ns_per_op", "dropped", "undropped_ns_per_op", "huge_page_bytes"];
    let others = ["median", "min", "max", "vs", "of_null", "arm", "server_cpu", "server_cpu_ns_per_op"];
    let named = |key: &&String| !figures.contains(&key.as_str()) && !others.contains(&key.as_str());
    let object = value.as_object().unwrap();
    let pairs = object.keys().filter(named).map(|key| format!("{key}={}", object[key]));
    pairs.chain([format!("arm={arm}")]).collect::<BTreeSet<_>>().into_iter().collect()
}

fn row<'v>(report: &'v Value, of: &Value, arm: &str) -> &'v Value {
    let wanted = place(of, arm);
    let rows = array(report, "rows");
    rows.iter()
        .find(|row| place(row, row["arm"].as_str().unwrap()) == wanted)
        .unwrap_or_else(|| panic!("no row {wanted:?}"))
}

/// A median of ratios lies between the extremes that the two rows allow.
fn check_ratios(report: &Value) {
    for ratio in array(report, "ratios") {
        check_spread(ratio);
        let own = row(report, ratio, ratio["arm"].as_str().unwrap());
        let other = row(report, ratio, ratio["vs"].as_str().unwrap());
        let ns = |row: &Value, key: &str| number(&row["ns_per_op"][key]);
        let (low, high) = (ns(own, "min") / ns(other, "max"), ns(own, "max") / ns(other, "min"));
        let median = number(&ratio["median"]);
        assert!(low * 0.999 <= median && median <= high * 1.001, "{ratio} not within {low} to {high}");
    }
}

fn check_rows(report: &Value) {
    for row in array(report, "rows") {
        check_spread(&row["ops_per_s"]);
        check_spread(&row["ns_per_op"]);
        let workers = row.get("procs").unwrap_or(&row["threads"]);
        // The least rate is the greatest time.
        let back = number(workers) * 1e9 / number(&row["ops_per_s"]["min"]);
        let max = number(&row["ns_per_op"]["max"]);
        assert!((back / max - 1.0).abs() < 1e-6, "{row}");
        assert!((0.0..=1.0).contains(&number(&row["dropped"])));
    }
    for scaling in array(report, "scaling") {
        check_spread(scaling);
    }
}

fn check(report: &Value) {
    assert_eq!(report["version"], 1);
    check_keys(report);
    check_rows(report);
    check_ratios(report);
}

#[test]
fn every_workload_reports_what_is_documented() {
    for workload in workloads() {
        let workload = workload.as_str();
        if workload == "fuse" && !can_mount() {
            println!("fuse is skipped: no root, or no /dev/fuse");
            continue;
        }
        let report = report(
            workload,
            &options(
                workload,
                &[
                    ["--depth", "2"],
                    ["--files", "50"],
                    ["--dirs", "3"],
                    ["--trees", "2"],
                    ["--mods", "1,16"],
                    ["--blocks", "4096"],
                ],
            ),
        );
        assert_eq!(report["workload"], workload);
        check(&report);
        let arms: BTreeSet<_> =
            array(&report, "rows").iter().map(|row| row["arm"].as_str().unwrap()).collect();
        let missing =
            array(&report, "notes").iter().filter(|n| n.as_str().unwrap().contains("is not available"));
        assert_eq!(
            arms.len() + missing.count(),
            array(&report["config"], "arms").len(),
            "{workload}: {arms:?}"
        );
        let orders =
            if report["rows"][0].get("depth").is_some() { &["independent", "serialized"][..] } else { &[] };
        for order in orders {
            let mut rows = array(&report, "rows").iter();
            assert!(rows.any(|row| row["order"] == *order && row["arm"] == "uvfs"), "{workload} {order}");
        }
    }
}

#[test]
fn every_workload_and_arm_is_explained() {
    let text = document();
    let (_, out, _) = bench(&["--list"]);
    let arms = out.lines().filter_map(|line| line.trim().strip_prefix("arms: ")).flat_map(|l| l.split(", "));
    let words: BTreeSet<String> = arms.map(str::to_owned).chain(workloads()).collect();
    let rows: String = text.lines().filter(|line| line.starts_with('|')).collect();
    let missing: Vec<_> = words.iter().filter(|word| !rows.contains(&format!("`{word}`"))).collect();
    assert!(missing.is_empty(), "README.md says nothing of {missing:?}");
}

#[test]
fn references_are_compared_and_nothing_is_dropped() {
    let more = ["--threads", "3", "--hold-us", "1", "--every-ms", "1"];
    let report = report("lockref-oversubscribed", &more);
    check(&report);
    let rows = array(&report, "rows");
    let arms: Vec<_> = rows.iter().map(|row| row["arm"].as_str().unwrap()).collect();
    assert_eq!(arms, ["null", "arc", "stock", "spin", "ticket", "ticket-spin", "uvfs"]);
    assert!(rows.iter().all(|row| row["dropped"] == 0.0 && row["hold_us"] == 1 && row["every_ms"] == 1));
    let notes = array(&report, "notes").iter().map(|note| note.as_str().unwrap());
    let said = |what: &str| notes.clone().any(|note| note.starts_with("uvfs") && note.contains(what));
    assert!(said(": 0 of ") && said("worst round over its first"));
}

#[test]
fn a_lock_taken_once_divides_the_turn() {
    let report = report("lockref", &["--threads", "1", "--every-ms", "1", "--hold-us", "1"]);
    check(&report);
    let of = |locker: &str| array(&report, "rows").iter().filter(|row| row["locker"] == locker).count();
    assert_eq!((of("once"), of("often")), (7, 7));
    let notes = array(&report, "notes").iter().map(|note| note.as_str().unwrap());
    assert_eq!(notes.filter(|note| note.contains("before the hold")).count(), 7);
    let (good, _, err) = bench(&["lockref", "--threads", "512"]);
    assert!(!good && err.contains("lockref-oversubscribed"), "{err}");
}

#[test]
fn a_trace_of_blocks_is_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let trace = trace.to_str().unwrap();
    std::fs::write(trace, "# a walk\n7 1024\n5000000 1024\n7 1024\n").unwrap();
    let report = report("blocks", &["--trace", trace]);
    check(&report);
    let rows = array(&report, "rows");
    assert!(rows.iter().all(|row| row["pattern"] == "trace") && rows.len() == 3 * 8 * 2, "{rows:?}");
    std::fs::write(trace, "7\nseven\n").unwrap();
    let (good, _, err) = bench(&["blocks", "--trace", trace]);
    assert!(!good && err.contains("line 2") && err.contains("\"seven\""), "{err}");
    let report = self::report("blocks", &["--patterns", "mod,uniform", "--mods", "3", "--blocks", "100"]);
    let mods: Vec<_> = array(&report, "rows").iter().map(|row| row.get("mod").is_some()).collect();
    assert_eq!(mods.iter().filter(|has| **has).count() * 2, mods.len());
    let (good, _, err) = bench(&["blocks", "--patterns", "leaf-mod", "--mods", "100", "--device", "1000"]);
    assert!(!good && err.contains("--device 1000: leaf-mod needs 6337 blocks"), "{err}");
}

#[test]
fn a_target_takes_part_by_threads_and_by_processes() {
    let dir = tempfile::tempdir().unwrap();
    let target = format!("inproc,there={}", dir.path().display());
    for workload in ["stat-same", "open-separate", "lookup-miss"] {
        let report =
            report(workload, &["--depth", "2", "--target", &target, "--procs", "1,2", "--arms", "null,uvfs"]);
        check(&report);
        let rows = array(&report, "rows");
        let procs: Vec<_> = rows.iter().filter_map(|row| row.get("procs")).collect();
        assert_eq!(procs.len(), 4, "{workload}");
        assert!(array(&report, "ratios").iter().any(|r| r["arm"] == "uvfs" && r["vs"] == "there"));
        assert!(array(&report, "notes").iter().any(|n| n.as_str().unwrap().contains("system-call boundary")));
    }
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "the target's tree is still there");
}

#[test]
fn aged_trees_hold_what_they_held() {
    let dir = tempfile::tempdir().unwrap();
    let target = format!("inproc,there={}", dir.path().display());
    for (workload, more) in [
        ("table", &["--files", "50", "--depth", "3"][..]),
        ("stat-many", &["--files", "50", "--depth", "3", "--target", &target]),
        ("tree", &["--trees", "3", "--dirs", "2", "--files", "20", "--target", &target]),
    ] {
        // Each arm is checked after it was aged, and a walk of `tree` counts what it finds.
        let report = report(workload, &[&["--aged"], more].concat());
        check(&report);
        assert!(array(&report, "rows").iter().all(|row| row["aged"] == true), "{workload}");
    }
    let (good, _, err) = bench(&["tree", "--aged", "--memory", "1M"]);
    assert!(!good && err.contains("--memory"), "{err}");
}

#[test]
fn directories_change_while_files_are_looked_up() {
    let more = ["--files", "50", "--depth", "3", "--changes", "0,1000", "--threads", "1,2"];
    let report = report("rename-dirs", &more);
    check(&report);
    let notes: Vec<_> = array(&report, "notes").iter().map(|note| note.as_str().unwrap()).collect();
    for arm in ["uvfs", "uvfs-prefix"] {
        let of = |what: &str| notes.iter().filter(|n| n.starts_with(arm) && n.contains(what)).count();
        assert!(of(" of 1000 changes a second were made") >= 1, "{notes:?}");
        assert!(of("with 1000 changes a second a stat takes") >= 4, "{notes:?}");
    }
    let rates: BTreeSet<_> = array(&report, "rows").iter().map(|row| row["changes"].to_string()).collect();
    assert_eq!(rates, BTreeSet::from(["0".to_owned(), "1000".to_owned()]));
    let (good, _, err) = bench(&["rename-dirs", "--depth", "1"]);
    assert!(!good && err.contains("leads through no directory"), "{err}");
    let (_, help, _) = bench(&["rename-dirs", "--help"]);
    assert!(help.contains("no step that moves a key"), "{help}");
}

#[test]
fn all_forms_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let run = |format: &str| {
        let out = path(format);
        let args = [
            "table",
            "--seconds",
            "0.002",
            "--rounds",
            "1",
            "--depth",
            "2",
            "--files",
            "1",
            "--arms",
            "null,uvfs",
        ];
        let (good, stdout, err) = bench(&[&args[..], &["--format", format, "--out", &out]].concat());
        assert!(good && stdout.is_empty(), "{err}");
        std::fs::read_to_string(out).unwrap()
    };
    let (table, csv, markdown) = (run("table"), run("csv"), run("markdown"));
    assert!(table.contains("uvfs") && table.contains("ns/op"), "{table}");
    assert!(markdown.contains("| uvfs") && markdown.contains("|-"), "{markdown}");
    assert_eq!(csv.lines().count(), 1 + 2 * 2 * 2, "{csv}");
    let fields = |line: &str| line.split(',').count();
    assert!(csv.lines().all(|line| fields(line) == fields(csv.lines().next().unwrap())));
    let json = path("json");
    run("json");
    let svg = path("x.svg");
    let (good, _, err) = bench(&["plot", &json, &json, "--out", &svg]);
    assert!(good, "{err}");
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.contains("uvfs, 2 threads"));
}

#[test]
fn seconds_are_printed_as_will_it_scale_does() {
    let args =
        ["table", "--seconds", "0.002", "--rounds", "2", "--depth", "1", "--files", "1", "--arms", "uvfs"];
    let (good, _, err) = bench(&[&args[..], &["--per-second", "--threads", "1,2"]].concat());
    assert!(good, "{err}");
    let lines: Vec<_> = err.lines().filter(|l| l.starts_with("min:")).collect();
    assert_eq!(lines.len(), 2 * 2 * 2, "{err}");
    assert!(lines.iter().all(|l| l.contains(" max:") && l.contains(" total:")));
}
