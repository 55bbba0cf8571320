//! Subscriptions, and the states that hold them.

use std::fs;

use serde_json::{Value, json};

use crate::client::{Client, ENCODINGS, Encoding};
use crate::{Served, names};

/// The next PDU of a subscription, which must be of this kind.
fn pdu(client: &mut Client, subscription: &str, kind: &str) -> Value {
    let pdu = client.receive();
    assert_eq!((&pdu["subscription"], &pdu["unilateral"]), (&json!(subscription), &json!(true)), "{pdu}");
    assert!(pdu.get(kind).is_some(), "no {kind}: {pdu}");
    pdu
}

/// Reads PDUs until these names have come, each one perhaps several times.
fn until(client: &mut Client, subscription: &str, wanted: &[&str]) {
    let mut missing: Vec<_> = wanted.to_vec();
    while !missing.is_empty() {
        let came = names(&pdu(client, subscription, "files"));
        assert!(came.iter().all(|name| wanted.contains(&&name[..])), "{came:?}");
        missing.retain(|name| !came.contains(&(*name).to_owned()));
    }
}

pub fn subscriptions() {
    for encoding in ENCODINGS {
        let served = Served::new();
        let root = &served.root;
        served.write("a");
        let (mut client, mut other) = (served.client(encoding), served.client(Encoding::Json));
        client.done(&json!(["watch", root]));
        let spec = |more: Value| {
            let mut spec = json!({"fields": ["name"], "expression": ["type", "f"]});
            spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            spec
        };
        client.done(&json!(["subscribe", root, "plain", spec(json!({}))]));
        let first = pdu(&mut client, "plain", "files");
        assert_eq!((names(&first), &first["is_fresh_instance"]), (vec!["a".to_owned()], &json!(true)));
        served.write("b");
        until(&mut client, "plain", &["b"]);
        fs::create_dir(root.join("d")).expect("a directory");
        fs::rename(root.join("b"), root.join("d/b")).expect("a rename");
        until(&mut client, "plain", &["b", "d/b"]);
        // While source control has its lock, nothing is sent; flush-subscriptions sends it nevertheless.
        served.write(".git/index.lock");
        served.write("c");
        let flush = json!(["flush-subscriptions", root, {"sync_timeout": 10_000}]);
        client.send(&flush);
        until(&mut client, "plain", &["c", ".git/index.lock"]);
        assert_eq!(client.receive()["synced"], json!(["plain"]));
        fs::remove_file(root.join(".git/index.lock")).expect("a file");
        until(&mut client, "plain", &[".git/index.lock"]);
        assert_eq!(client.done(&json!(["unsubscribe", root, "plain"]))["deleted"], json!(true));
        deferred_and_dropped(&served, &mut client, &mut other, &spec);
        // A root that is gone.
        other.done(&json!(["watch-del", root]));
        assert_eq!(pdu(&mut client, "deferring", "canceled")["canceled"], json!(true));
    }
}

fn deferred_and_dropped(
    served: &Served,
    client: &mut Client,
    other: &mut Client,
    spec: &dyn Fn(Value) -> Value,
) {
    let root = &served.root;
    let clock = client.done(&json!(["clock", root, {"sync_timeout": 10_000}]))["clock"].clone();
    let deferring = spec(json!({"defer": ["s"], "since": clock}));
    client.done(&json!(["subscribe", root, "deferring", deferring]));
    client.done(&json!(["subscribe", root, "dropping", spec(json!({"drop": ["s"], "since": clock}))]));
    other.done(&json!(["state-enter", root, {"name": "s", "metadata": {"m": 1}}]));
    assert!(other.ask(&json!(["state-enter", root, "s"]))["error"].is_string());
    for name in ["deferring", "dropping"] {
        let entered = pdu(client, name, "state-enter");
        assert_eq!((&entered["state-enter"], &entered["metadata"]), (&json!("s"), &json!({"m": 1})));
    }
    served.write("while");
    let flush = json!(["flush-subscriptions", root, {"sync_timeout": 10_000, "subscriptions": ["dropping"]}]);
    assert_eq!(client.done(&flush)["dropped"], json!(["dropping"]), "nothing came before the answer");
    other.done(&json!(["state-leave", root, "s"]));
    for name in ["deferring", "dropping"] {
        assert_eq!(pdu(client, name, "state-leave")["state-leave"], json!("s"));
    }
    until(client, "deferring", &["while"]);
    assert_eq!(client.done(&json!(["unsubscribe", root, "dropping"]))["deleted"], json!(true));
}

pub fn abandoned() {
    let served = Served::new();
    let root = &served.root;
    let (mut client, mut other) = (served.client(Encoding::Bser2), served.client(Encoding::Json));
    client.done(&json!(["watch", root]));
    let clock = client.done(&json!(["clock", root]))["clock"].clone();
    other.done(&json!(["state-enter", root, "s"]));
    let answer =
        client.done(&json!(["subscribe", root, "sub", {"fields": ["name"], "since": clock, "drop": ["s"]}]));
    assert_eq!(answer["asserted-states"], json!(["s"]));
    served.write("unseen");
    drop(other);
    let left = pdu(&mut client, "sub", "state-leave");
    assert_eq!((&left["state-leave"], &left["abandoned"]), (&json!("s"), &json!(true)));
    served.write("seen");
    until(&mut client, "sub", &["seen"]);
}
