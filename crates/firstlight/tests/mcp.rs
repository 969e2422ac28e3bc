//! `mcp`: the SDK's own client starts the server as a child process, lists its tools and calls them.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::{RoleClient, RunningService};
use rmcp::transport::TokioChildProcess;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use support::{command, environment};
use tempfile::tempdir;

async fn client(folder: &Path, arguments: &[&str]) -> RunningService<RoleClient, ()> {
    let mut all = vec!["mcp"];
    all.extend(arguments);
    let process = tokio::process::Command::from(command(folder, &all));
    ().serve(TokioChildProcess::new(process).unwrap()).await.unwrap()
}

async fn call(
    client: &RunningService<RoleClient, ()>,
    tool: &'static str,
    arguments: Value,
) -> CallToolResult {
    let arguments = arguments.as_object().cloned().unwrap();
    client.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments)).await.unwrap()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(work)
}

#[test]
fn client_lists_and_calls_tools() {
    let folder = tempdir().unwrap();
    let venv = environment(
        folder.path(),
        &[("flashinfer_python", "0.6.14"), ("flashinfer_cubin", "0.6.13")],
    );
    block_on(async {
        let client = client(folder.path(), &[]).await;
        let tools = client.list_all_tools().await.unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
        assert_eq!(names, ["doctor", "explain", "plan", "fit", "verify", "report"]);
        assert!(
            tools
                .iter()
                .all(|tool| tool.annotations.as_ref().unwrap().read_only_hint == Some(true))
        );

        let doctor = call(&client, "doctor", json!({"venv": venv})).await;
        let report = doctor.structured_content.unwrap();
        assert_eq!(report["schema"], 1);
        assert!(report["envs"].to_string().contains("0.6.13"), "{report}");

        let text = "flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14)";
        let explained = call(&client, "explain", json!({"text": text, "venv": venv})).await;
        let explained = explained.structured_content.unwrap();
        assert_eq!(explained["entities"][0]["confirmed_here"], true, "{explained}");

        let fit = call(&client, "fit", json!({"model": "granite-4.0-h-micro"})).await;
        assert!(fit.structured_content.unwrap().is_object());

        let plan = call(&client, "plan", json!({"machine": "a100"})).await;
        assert!(plan.structured_content.unwrap().is_object());

        let verified = call(
            &client,
            "verify",
            json!({"ops": ["rmsnorm"], "extent": "quick", "backend": "cpu"}),
        )
        .await;
        assert!(verified.structured_content.unwrap().to_string().contains("rmsnorm"));

        // A missing run is a tool error with the command's message.
        let absent = call(&client, "report", json!({"run": "absent"})).await;
        assert_eq!(absent.is_error, Some(true));
        assert!(format!("{:?}", absent.content).contains("absent"));
        client.cancel().await.unwrap();
    });
}

#[test]
fn refuses_changes_unless_allowed() {
    let folder = tempdir().unwrap();
    block_on(async {
        let reader = client(folder.path(), &[]).await;
        let arguments = json!({"fix": true}).as_object().cloned().unwrap();
        let refused =
            reader.call_tool(CallToolRequestParams::new("doctor").with_arguments(arguments)).await;
        assert!(refused.unwrap_err().to_string().contains("--allow-changes"));
        reader.cancel().await.unwrap();
        let writer = client(folder.path(), &["--allow-changes"]).await;
        let tools = writer.list_all_tools().await.unwrap();
        let doctor = tools.iter().find(|tool| tool.name == "doctor").unwrap();
        assert!(doctor.input_schema["properties"].get("fix").is_some(), "{doctor:?}");
        assert_eq!(doctor.annotations.as_ref().unwrap().read_only_hint, Some(false));
        writer.cancel().await.unwrap();
    });
}

/// Without the cancellation, every case of every op runs, which takes minutes, and its answer is printed.
#[test]
fn cancelled_call_returns_no_answer() {
    let folder = tempdir().unwrap();
    let mut server = command(folder.path(), &["mcp"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let verify = json!({"name": "verify", "arguments": {"extent": "full", "backend": "cpu"}});
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": verify}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}),
    ] {
        writeln!(server.stdin.as_mut().unwrap(), "{message}").unwrap();
    }
    // The server exits after end of input and the end of every call.
    let output = server.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed, "{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n");
}
