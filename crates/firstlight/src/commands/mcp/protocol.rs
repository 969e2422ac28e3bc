//! The Model Context Protocol's messages: JSON-RPC 2.0, one message per line.
//!
//! A server that offers only tools needs five methods. The official SDK (rmcp) implements the whole protocol and would
//! be a thirtieth of the released program; its client tests this server instead.

use super::tools;
use crate::source_tree;
use serde_json::{Map, Value, json};

/// Protocol versions with an `initialize` handshake, newest first. A client that requests another one gets the newest,
/// as specified.
const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

const INSTRUCTIONS: &str = "\
firstlight diagnoses NVIDIA GPU machines and Python environments by reading their files. Begin with `doctor`; give `explain` any error text or log. \
`verify` runs kernels against a float64 reference. A skipped or unlaunched kernel is never a pass. Every answer is the JSON of the command of that name.";

/// Error codes of JSON-RPC 2.0, section 5.1.
const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
pub(super) const INTERNAL_ERROR: i32 = -32603;

/// The server's reaction to a message.
#[derive(Debug)]
pub(super) enum Action {
    /// Send this.
    Reply(Value),
    /// Run a tool and answer the request with this id.
    Call { id: Value, call: tools::Call },
    /// Cancel the call with this id, without an answer.
    Cancel { id: Value },
    /// No reaction.
    Ignore,
}

/// Parses one line.
pub(super) fn action(line: &str, allow_changes: bool) -> Action {
    let message: Value = match serde_json::from_str(line) {
        Ok(message) => message,
        Err(problem) => {
            return Action::Reply(error(&Value::Null, PARSE_ERROR, &problem.to_string()));
        }
    };
    let id = message.get("id").cloned().filter(|id| id.is_string() || id.is_number());
    let Some(method) = message["method"].as_str() else {
        // An answer to a request, which this server never sends.
        if message.get("result").or(message.get("error")).is_some() {
            return Action::Ignore;
        }
        let id = id.unwrap_or(Value::Null);
        return Action::Reply(error(&id, INVALID_REQUEST, "a message needs a method"));
    };
    let parameters = &message["params"];
    let Some(id) = id else {
        return match method {
            "notifications/cancelled" => Action::Cancel { id: parameters["requestId"].clone() },
            _ => Action::Ignore,
        };
    };
    match method {
        "initialize" => Action::Reply(result(&id, initialized(parameters))),
        "ping" => Action::Reply(result(&id, json!({}))),
        "tools/list" => Action::Reply(result(&id, json!({ "tools": tools::list(allow_changes) }))),
        "tools/call" => {
            let none = Map::new();
            let name = parameters["name"].as_str().unwrap_or_default();
            let arguments = parameters["arguments"].as_object().unwrap_or(&none);
            match tools::call(name, arguments, allow_changes) {
                Ok(call) => Action::Call { id, call },
                Err(problem) => Action::Reply(error(&id, INVALID_PARAMS, &problem)),
            }
        }
        _ => {
            let problem = format!("there is no method `{method}`");
            Action::Reply(error(&id, METHOD_NOT_FOUND, &problem))
        }
    }
}

fn initialized(parameters: &Value) -> Value {
    let asked = parameters["protocolVersion"].as_str();
    let version = asked.filter(|asked| VERSIONS.contains(asked)).unwrap_or(VERSIONS[0]);
    json!({
        "protocolVersion": version,
        "capabilities": { "tools": {} },
        "serverInfo": { "name": "firstlight", "version": source_tree::VERSION },
        "instructions": INSTRUCTIONS,
    })
}

/// The answer to a request.
pub(super) fn result(id: &Value, result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

/// The answer to a failed request.
pub(super) fn error(id: &Value, code: i32, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replied(line: &str) -> Value {
        match action(line, false) {
            Action::Reply(reply) => reply,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn initialize_agrees_on_a_version_that_both_know() {
        for (asked, agreed) in [
            ("2024-11-05", "2024-11-05"),
            ("2025-06-18", "2025-06-18"),
            ("2026-07-28", "2025-11-25"),
            ("1.0", "2025-11-25"),
        ] {
            let line = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": asked}});
            let reply = replied(&line.to_string());
            assert_eq!(reply["result"]["protocolVersion"], agreed, "{asked}");
            assert_eq!(reply["id"], 0);
        }
    }

    #[test]
    fn malformed_messages_get_the_codes_of_json_rpc() {
        for (line, code, id) in [
            ("{", -32700, Value::Null),
            ("[]", -32600, Value::Null),
            (r#"{"id": 3}"#, -32600, json!(3)),
            (r#"{"id": "a", "method": "resources/list"}"#, -32601, json!("a")),
            (r#"{"id": 4, "method": "tools/call", "params": {"name": "shell"}}"#, -32602, json!(4)),
            (r#"{"id": 5, "method": "tools/call"}"#, -32602, json!(5)),
        ] {
            let reply = replied(line);
            assert_eq!((&reply["error"]["code"], &reply["id"]), (&json!(code), &id), "{line}");
        }
    }

    #[test]
    fn notifications_and_answers_get_no_reply() {
        for line in [
            r#"{"method": "notifications/initialized"}"#,
            r#"{"method": "tools/list"}"#,
            r#"{"id": 1, "result": {}}"#,
        ] {
            assert!(matches!(action(line, false), Action::Ignore), "{line}");
        }
        let cancel = r#"{"method": "notifications/cancelled", "params": {"requestId": 7}}"#;
        assert!(matches!(action(cancel, false), Action::Cancel { id } if id == 7));
    }
}
