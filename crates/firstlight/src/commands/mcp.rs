//! `firstlight mcp`: a server of the Model Context Protocol over standard input and output, for agents that bring a machine up.
//!
//! Each tool is one command with `--json`, run by this program in a process of its own, so that nothing but the protocol reaches
//! standard output and a driver in trouble takes no server with it.

mod tools;

use crate::Outcome;
use crate::cli::Mcp;
use crate::own_program::own_program;
use crate::source_tree;
use anyhow::Context as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use std::process::Stdio;

const INSTRUCTIONS: &str = "\
firstlight diagnoses NVIDIA GPU machines and Python environments by reading their files. Begin with `doctor`; give `explain` any error text or log. \
`verify` runs kernels against a float64 reference. A skipped or unlaunched kernel is never a pass. Every answer is the JSON of the command of that name.";

/// The server: its only state is what the user allowed.
#[derive(Debug, Clone, Copy)]
struct Server {
    allow_changes: bool,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("firstlight", source_tree::VERSION))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::list(self.allow_changes)))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let call = tools::call(&request.name, &arguments, self.allow_changes)
            .map_err(|problem| ErrorData::invalid_params(problem, None))?;
        let answer = run(call).await.map_err(|problem| {
            ErrorData::internal_error(format!("cannot run firstlight: {problem}"), None)
        })?;
        Ok(answer.into())
    }
}

/// Runs one command. Exit codes 0, 1 and 3 are answers; 2 is a wrong call or an operational error.
async fn run(call: tools::Call) -> std::io::Result<CallToolResult> {
    let output = tokio::task::spawn_blocking(move || -> std::io::Result<std::process::Output> {
        let program = own_program()
            .ok_or_else(|| std::io::Error::other("the program's file is not known"))?;
        let mut child = std::process::Command::new(program)
            .args(&call.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            use std::io::Write;
            // A command that does not read its input closes it.
            let _ = input.write_all(call.input.as_bytes());
        }
        child.wait_with_output()
    })
    .await
    .map_err(std::io::Error::other)??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let (shown, problem) = (text(&output.stdout), text(&output.stderr));
    if matches!(output.status.code(), Some(0 | 1 | 3)) && !shown.is_empty() {
        let mut result = CallToolResult::success(vec![ContentBlock::text(shown.clone())]);
        result.structured_content = serde_json::from_str(&shown).ok();
        return Ok(result);
    }
    let words = if problem.is_empty() { shown } else { problem };
    Ok(CallToolResult::error(vec![ContentBlock::text(words)]))
}

pub(super) fn run_server(arguments: &Mcp) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    let server = Server { allow_changes: arguments.allow_changes };
    runtime.block_on(async {
        let running = server
            .serve(rmcp::transport::stdio())
            .await
            .context("the client did not begin a session")?;
        running.waiting().await.context("the session ended with an error")?;
        Ok(Outcome::Good)
    })
}
