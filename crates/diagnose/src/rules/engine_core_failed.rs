use super::{Role, Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "engine-core-failed",
    title: "vLLM's engine process ended; the reason stands above",
    about: "\
vLLM runs its engine in processes of its own. When one ends while it starts, the process that waits for it knows only
that it is gone: the words that follow are the same for a missing library, a driver that is too old, a full GPU or a
model that is not supported. The root cause is in the engine's own lines further up, marked (EngineCore ...) or
(Worker ...).

It shows as
  RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}

Look for the first ERROR or Traceback of the engine, and paste the whole log: `firstlight explain` finds what it knows
in it, wherever it stands.",
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
