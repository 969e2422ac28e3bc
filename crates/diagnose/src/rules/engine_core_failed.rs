use super::{Role, Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "engine-core-failed",
    title: "vLLM's engine process ended; the cause is earlier in the log",
    about: "\
vLLM runs its engine in separate processes. When one of them fails during startup, the process that waits for it knows
only that it exited: the message is the same for a missing library, a driver that is too old, a full GPU or an
unsupported model. The root cause is in the engine's own log lines further up, marked (EngineCore ...) or (Worker ...).

It shows as
  RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}

Look for the first ERROR or Traceback of the engine, or give the whole log to `firstlight explain`, which searches it
for known errors.",
    links: &["https://github.com/vllm-project/vllm/issues/21882"],
    texts: &[
        Text::new("Engine core initialization failed", "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"),
        Text::new("WorkerProc initialization failed due to an exception in a background process", "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."),
        Text::new("EngineDeadError: EngineCore encountered an issue", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."),
        Text::new("torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
    ],
    role: Role::Consequence,
    remedy: |_| {
        vec![
            "# the whole log, not its end:".into(),
            "vllm serve ... 2>&1 | tee vllm.log".into(),
            "firstlight explain vllm.log".into(),
            "grep -nE 'ERROR|Traceback|Error:' vllm.log | head".into(),
        ]
    },
    ..Rule::BLANK
};
