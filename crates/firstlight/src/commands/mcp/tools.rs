//! The tools, their parameters, and the command line of each call.

use serde_json::{Map, Value, json};

/// A command to run.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) arguments: Vec<String>,
    /// Text for its standard input.
    pub(super) input: String,
}

/// The type of a parameter.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Flag,
    List,
}

/// One parameter of a tool.
struct Parameter {
    name: &'static str,
    kind: Kind,
    about: &'static str,
    required: bool,
    /// The option of the command line; empty for positional arguments, `-` for standard input.
    option: &'static str,
    /// Whether it changes something; such parameters need --allow-changes.
    changes: bool,
}

const fn parameter(
    name: &'static str,
    kind: Kind,
    option: &'static str,
    about: &'static str,
) -> Parameter {
    Parameter { name, kind, about, required: false, option, changes: false }
}

const fn required(mut parameter: Parameter) -> Parameter {
    parameter.required = true;
    parameter
}

const fn changing(mut parameter: Parameter) -> Parameter {
    parameter.changes = true;
    parameter
}

/// One tool.
struct Spec {
    name: &'static str,
    about: &'static str,
    parameters: &'static [Parameter],
}

const VENV: Parameter = parameter(
    "venv",
    Kind::Text,
    "--venv",
    "folder of a Python virtual or conda environment to read first",
);

const TOOLS: [Spec; 6] = [
    Spec {
        name: "doctor",
        about: "Read this machine and its Python environments, and list what is wrong with the GPU stack, each finding with evidence, cause and commands. Imports no package and runs no kernel.",
        parameters: &[
            VENV,
            parameter(
                "model",
                Kind::Text,
                "--model",
                "folder of a model, a config.json or the name of a shape: also judge what it needs here",
            ),
            parameter(
                "verify_files",
                Kind::Flag,
                "--verify-files",
                "compare every installed file with the hash in RECORD",
            ),
            changing(parameter(
                "fix",
                Kind::Flag,
                "--fix",
                "run the remedy in the environment after taking a snapshot; only packages change, and a failed remedy is rolled back",
            )),
        ],
    },
    Spec {
        name: "explain",
        about: "Explain an error text, traceback or log: the rules it matches, the state of its modules, symbols, versions and error codes on this machine, and commands.",
        parameters: &[
            required(parameter("text", Kind::Text, "-", "the text, as it was printed")),
            VENV,
        ],
    },
    Spec {
        name: "plan",
        about: "Choose a Python, CUDA, torch and extensions that fit together on this or a named machine. Changes nothing.",
        parameters: &[
            parameter(
                "wants",
                Kind::List,
                "",
                "requirements as pip writes them, such as vllm or flash-attn>=2.8; torch without any",
            ),
            parameter(
                "machine",
                Kind::Text,
                "--machine",
                "another machine by name: a100, l4, gh200",
            ),
            parameter(
                "gpu",
                Kind::Text,
                "--gpu",
                "compute capability of another machine's GPU, such as 8.0",
            ),
            parameter("driver", Kind::Text, "--driver", "driver version of that machine"),
            parameter("python", Kind::Text, "--python", "Python release, such as 3.12"),
            parameter("cuda", Kind::Text, "--cuda", "CUDA release of torch's build, such as 12.8"),
        ],
    },
    Spec {
        name: "fit",
        about: "Compute in bytes whether a model fits in memory here: weights, KV cache, states and workspace.",
        parameters: &[
            required(parameter("model", Kind::Text, "", "folder, config.json or name of a shape")),
            parameter("context", Kind::Number, "--context", "tokens per sequence"),
            parameter("batch", Kind::Number, "--batch", "sequences at once"),
            parameter("weights", Kind::Text, "--weights", "count weights as fp8, int8 or int4"),
        ],
    },
    Spec {
        name: "verify",
        about: "Run kernels against a float64 reference on this machine. Takes seconds (quick) to minutes. A skip or a fallback is never a pass.",
        parameters: &[
            parameter("ops", Kind::List, "", "ops such as attention or rmsnorm; all without any"),
            parameter("extent", Kind::Text, "--extent", "quick, standard or full"),
            parameter("backend", Kind::Text, "--backend", "auto, cpu or cuda"),
        ],
    },
    Spec {
        name: "report",
        about: "Read the report of a run folder that `firstlight check` wrote.",
        parameters: &[required(parameter("run", Kind::Text, "", "the run's folder"))],
    },
];

/// The available tools.
pub(super) fn list(allow_changes: bool) -> Vec<Value> {
    let tool = |spec: &'static Spec| {
        let offered = || spec.parameters.iter().filter(|it| allow_changes || !it.changes);
        let properties: Map<String, Value> =
            offered().map(|it| (it.name.to_owned(), schema(it))).collect();
        let required: Vec<&str> = offered().filter(|it| it.required).map(|it| it.name).collect();
        let changes = offered().any(|it| it.changes);
        json!({
            "name": spec.name,
            "description": spec.about,
            "inputSchema": {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": false,
            },
            "annotations": { "readOnlyHint": !changes, "destructiveHint": changes },
        })
    };
    TOOLS.iter().map(tool).collect()
}

fn schema(parameter: &Parameter) -> Value {
    match parameter.kind {
        Kind::Text => json!({"type": "string", "description": parameter.about}),
        Kind::Number => json!({"type": "integer", "minimum": 1, "description": parameter.about}),
        Kind::Flag => json!({"type": "boolean", "description": parameter.about}),
        Kind::List => {
            json!({"type": "array", "items": {"type": "string"}, "description": parameter.about})
        }
    }
}

/// The command of a call, or why it is refused.
pub(super) fn call(
    name: &str,
    given: &Map<String, Value>,
    allow_changes: bool,
) -> Result<Call, String> {
    let known = || TOOLS.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", ");
    let spec = TOOLS
        .iter()
        .find(|spec| spec.name == name)
        .ok_or_else(|| format!("there is no tool `{name}`: {}", known()))?;
    for parameter in given.keys() {
        let known = spec.parameters.iter().find(|it| it.name == parameter);
        let known = known.ok_or_else(|| format!("`{name}` has no parameter `{parameter}`"))?;
        if known.changes && !allow_changes {
            return Err(format!(
                "`{parameter}` changes this machine: start the server with --allow-changes to allow it"
            ));
        }
    }
    let mut call =
        Call { arguments: vec![name.to_owned(), "--json".to_owned()], input: String::new() };
    let mut positional: Vec<String> = Vec::new();
    for parameter in spec.parameters {
        let value = match given.get(parameter.name) {
            None | Some(Value::Null) if parameter.required => {
                return Err(format!("`{name}` needs `{}`: {}", parameter.name, parameter.about));
            }
            None | Some(Value::Null) => continue,
            Some(value) => value,
        };
        let wrong = || format!("`{}` has the wrong type: {}", parameter.name, parameter.about);
        match parameter.kind {
            Kind::Flag => {
                if value.as_bool().ok_or_else(wrong)? {
                    call.arguments.push(parameter.option.to_owned());
                    if parameter.changes {
                        call.arguments.push("--yes".to_owned());
                    }
                }
            }
            Kind::List => {
                let items = value.as_array().ok_or_else(wrong)?;
                for item in items {
                    positional.push(item.as_str().ok_or_else(wrong)?.to_owned());
                }
            }
            Kind::Number => {
                let number = value.as_u64().ok_or_else(wrong)?;
                call.arguments.push(format!("{}={number}", parameter.option));
            }
            Kind::Text => {
                let text = value.as_str().ok_or_else(wrong)?.to_owned();
                match parameter.option {
                    "-" => {
                        call.input = text;
                        positional.push("-".to_owned());
                    }
                    "" => positional.push(text),
                    option => call.arguments.push(format!("{option}={text}")),
                }
            }
        }
    }
    if !positional.is_empty() {
        // Text of a client is never parsed as options.
        if positional != ["-"] {
            call.arguments.push("--".to_owned());
        }
        call.arguments.extend(positional);
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::{call, list};
    use serde_json::json;

    fn line(name: &str, given: serde_json::Value, allow: bool) -> Result<String, String> {
        let given = given.as_object().cloned().unwrap_or_default();
        call(name, &given, allow).map(|call| call.arguments.join(" "))
    }

    #[test]
    fn calls_become_command_lines() {
        let check = |name, given, expect: &str| {
            assert_eq!(line(name, given, false).as_deref(), Ok(expect), "{name}");
        };
        check("doctor", json!({"venv": "/v"}), "doctor --json --venv=/v");
        check("explain", json!({"text": "CUDA error"}), "explain --json -");
        check(
            "plan",
            json!({"wants": ["vllm", "--lock"], "gpu": "8.6"}),
            "plan --json --gpu=8.6 -- vllm --lock",
        );
        check("fit", json!({"model": "m", "context": 4096}), "fit --json --context=4096 -- m");
    }

    #[test]
    fn wrong_calls_and_changes_are_refused() {
        for (name, given, words) in [
            ("shell", json!({}), "no tool"),
            ("explain", json!({}), "needs `text`"),
            ("doctor", json!({"sarif": "/etc/x"}), "no parameter `sarif`"),
            ("doctor", json!({"fix": true}), "--allow-changes"),
            ("fit", json!({"model": 3}), "wrong type"),
        ] {
            let problem = line(name, given, false).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
        assert_eq!(
            line("doctor", json!({"fix": true, "venv": "/v"}), true).as_deref(),
            Ok("doctor --json --venv=/v --fix --yes")
        );
    }

    #[test]
    fn tools_are_read_only_unless_changes_are_allowed() {
        let read_only = |allow| {
            list(allow)
                .into_iter()
                .filter(|tool| tool["annotations"]["readOnlyHint"] == true)
                .count()
        };
        assert_eq!((read_only(false), read_only(true)), (6, 5));
    }
}
