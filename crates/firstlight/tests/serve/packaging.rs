//! The packaged systemd unit and Kubernetes manifest start a server with their arguments, and stop it in time.
#![cfg(unix)]

use crate::client::{Server, wait};
use crate::model::model;
use serde_json::Value;

fn packaged(name: &str) -> String {
    let path = format!("{}/../../packaging/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// Starts a server with the packaged arguments, but with another model, address and port.
fn starts(arguments: &[String]) -> Server {
    assert_eq!(arguments[0], "serve");
    let folder = model("granite-moe-mini");
    let mut own = Vec::new();
    let mut rest = arguments[2..].iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--port" | "--host" => assert!(rest.next().is_some()),
            "--json" => {}
            other => own.push(other),
        }
    }
    let server = Server::begin(folder.path(), &own);
    wait(|| server.get("/health").status == 200);
    server
}

/// The value of an option in seconds.
fn seconds(arguments: &[String], option: &str) -> u64 {
    let at = arguments.iter().position(|argument| argument == option).unwrap();
    arguments[at + 1].parse().unwrap()
}

fn ends(server: Server) {
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn systemd_unit_starts_a_server() {
    let unit = packaged("firstlight-serve.service");
    let value = |key: &str| {
        let lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        lines.collect::<Vec<_>>().concat()
    };
    let arguments: Vec<String> = value("ExecStart").split(' ').skip(1).map(str::to_owned).collect();
    assert_eq!(arguments[1], "${MODEL}");
    assert!(unit.contains("echo 'MODEL=") && unit.contains("FIRSTLIGHT_API_KEY="));
    let stop: u64 = value("TimeoutStopSec").parse().unwrap();
    assert!(stop > seconds(&arguments, "--shutdown-timeout") + 5, "systemd kills it too early");
    ends(starts(&arguments));
}

#[test]
fn kubernetes_manifest_starts_and_probes_a_server() {
    let text = packaged("kubernetes.yaml");
    let documents: Vec<Value> =
        text.split("\n---\n").map(|text| yaml_serde::from_str(text).unwrap()).collect();
    let [deployment, service] = documents.as_slice() else { panic!("{documents:?}") };
    let pod = &deployment["spec"]["template"];
    assert_eq!(pod["metadata"]["labels"], deployment["spec"]["selector"]["matchLabels"]);
    assert_eq!(pod["metadata"]["labels"], service["spec"]["selector"]);
    let container = &pod["spec"]["containers"][0];
    let arguments = container["args"].as_array().unwrap().iter();
    let arguments: Vec<String> = arguments.map(|word| word.as_str().unwrap().to_owned()).collect();
    assert_eq!(
        seconds(&arguments, "--port"),
        container["ports"][0]["containerPort"].as_u64().unwrap()
    );
    let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > seconds(&arguments, "--shutdown-timeout") + 5, "it is killed too early");
    assert_eq!(container["env"][0]["name"], "FIRSTLIGHT_API_KEY");
    let model = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
    assert!(arguments[1].starts_with(model));
    let server = starts(&arguments);
    for probe in ["startupProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        assert_eq!(server.get(path).status, 200, "{probe}");
    }
    ends(server);
}
